"""Finds and ends the processes that this process started, directly or indirectly."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
_PAUSE_SECONDS = 0.02
# podman starts a process of this name beside each container.
_WATCHER = "conmon"
_PODMAN = "podman"


def adopt_orphans() -> None:
    """Makes descendants that lose their parent children of this process. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class _Process(NamedTuple):
    pid: int
    name: str
    ends_itself: bool


def descendants() -> list[int]:
    """Returns the pids of all descendants that are no zombies."""
    return [process.pid for process in _descendants()]


def has_members(groups: Collection[int]) -> bool:
    """Whether a descendant that is no zombie is in one of these process groups."""
    for pid in descendants():
        with suppress(ProcessLookupError):  # It ended meanwhile.
            if os.getpgid(pid) in groups:
                return True
    return False


def kill_descendants(within_seconds: float) -> None:
    """Kills descendants until there are none or time is up, because one may just have started
    another. Then reaps the children that have ended, adopted ones included.

    What watches a container of podman's is not killed. The container's processes are, and their
    watcher then has podman forget the container, which would be listed for ever as one that runs.
    """
    deadline = time.monotonic() + within_seconds
    while (left := _descendants()) and time.monotonic() < deadline:
        for process in left:
            if not process.ends_itself:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descendants() -> list[_Process]:
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # pid (name) state ppid ...; the name may have spaces, parentheses and any other byte
            start, _, end = (entry / "stat").read_text(errors="replace").rpartition(")")
            state, parent = end.split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append((int(entry.name), start.partition("(")[2]))
    found: list[_Process] = []
    waiting = [_Process(os.getpid(), "", ends_itself=False)]
    while waiting:
        above = waiting.pop()
        below = [
            _Process(pid, name, _ends_itself(name, above))
            for pid, name in children.get(above.pid, ())
        ]
        found += below
        waiting += below
    return found


def _ends_itself(name: str, above: _Process) -> bool:
    """Whether it is a container's watcher, or what that has started to forget the container."""
    if above.name == _WATCHER:
        return name in (_WATCHER, _PODMAN)
    return above.ends_itself or name == _WATCHER
