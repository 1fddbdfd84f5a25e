"""Finds and ends the processes that this process started, directly or indirectly."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PAUSE_SECONDS = 0.02


def adopt_orphans() -> None:
    """Makes descendants that lose their parent children of this process. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants() -> list[int]:
    """Returns the pids of all descendants that are no zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # pid (name) state ppid ...; the name may have spaces, parentheses and any other byte
            stat = (entry / "stat").read_text(errors="replace")
            state, parent = stat.rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def kill_descendants(within_seconds: float) -> None:
    """Kills descendants until there are none or time is up, because one may just have started
    another. Then reaps the children that have ended, adopted ones included."""
    deadline = time.monotonic() + within_seconds
    while (left := descendants()) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
