"""Which processes are a lab's, and their end. A pid alone proves nothing: pids are reused."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from placewire.controller.lab.record import LabRecord, ProcessRecord
from placewire.controller.lab.system import MARKER, NAMESPACE_DIRECTORY

_TERM_SECONDS = 1.5
_KILL_SECONDS = 3.0
_PROC = Path("/proc")


def describe(pid: int, argv: Sequence[str]) -> ProcessRecord:
    """argv: of the program itself, without what it was started through."""
    return ProcessRecord(pid=pid, start_ticks=start_ticks(pid) or 0, argv=tuple(argv))


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat: when it started, in ticks since boot. None: no such process, or
    one that has ended and only waits to be reaped."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may hold anything; the state and 19 more fields follow it.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(process: ProcessRecord) -> bool:
    """The same process still: same start and same command line (perhaps before its exec)."""
    if start_ticks(process.pid) != process.start_ticks:
        return False
    argv = _fields(process.pid, "cmdline")
    return tuple(argv[-len(process.argv) :]) == process.argv


def processes_of(record: LabRecord) -> list[int]:
    """Recorded processes, and those in the lab's namespaces that carry its mark (iperf3, ranks, a
    daemon whose start could not be recorded any more). Never this process or one above it."""
    recorded = {process.pid for process in record.processes if is_alive(process)}
    return sorted((recorded | _marked_inside(record)) - _own_line())


def programs_inside(record: LabRecord, namespace: str, program: Sequence[str]) -> list[int]:
    """The lab's processes in that namespace whose command line has these words in a row."""
    words = "\0".join(["", *program, ""])
    return sorted(
        pid
        for pid in _in_namespaces([namespace]) - _own_line()
        if _is_marked(pid, record.name) and words in "\0".join(["", *_fields(pid, "cmdline"), ""])
    )


def running_seconds(pid: int) -> float:
    """Since it started; 0 where it has ended."""
    ticks = start_ticks(pid)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return 0.0 if ticks is None else max(0.0, now - ticks / os.sysconf("SC_CLK_TCK"))


def strangers_in(record: LabRecord) -> list[int]:
    """Processes in the lab's namespaces that the lab did not start, e.g. a shell."""
    inside = _inside(record)
    return sorted(pid for pid in inside - _own_line() if not _is_marked(pid, record.name))


def end(pids: Iterable[int]) -> list[int]:
    """SIGTERM, then SIGKILL. Returns those that are left."""
    begun = {pid: ticks for pid in pids if (ticks := start_ticks(pid)) is not None}
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        for pid, ticks in begun.items():
            if start_ticks(pid) == ticks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            begun = {pid: ticks for pid, ticks in begun.items() if start_ticks(pid) == ticks}
            if not begun:
                return []
            time.sleep(0.02)
    return sorted(begun)


def _marked_inside(record: LabRecord) -> set[int]:
    return {pid for pid in _inside(record) if _is_marked(pid, record.name)}


def _inside(record: LabRecord) -> set[int]:
    return _in_namespaces(record.namespaces)


def _in_namespaces(namespaces: Iterable[str]) -> set[int]:
    ours = set()
    for namespace in namespaces:
        with contextlib.suppress(FileNotFoundError):
            ours.add((NAMESPACE_DIRECTORY / namespace).stat().st_ino)
    found = set()
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                if (entry / "ns/net").stat().st_ino in ours:
                    found.add(int(entry.name))
    return found


def _is_marked(pid: int, lab: str) -> bool:
    return f"{MARKER}={lab}" in _fields(pid, "environ")


def _fields(pid: int, file: str) -> list[str]:
    try:
        text = (_PROC / str(pid) / file).read_text(errors="replace")
    except OSError:
        return []
    return text.rstrip("\0").split("\0")


def _own_line() -> set[int]:
    """This process and its ancestors: a lab may be taken down from inside itself."""
    line, pid = set(), os.getpid()
    while pid > 1:
        line.add(pid)
        text = (_PROC / str(pid) / "stat").read_text()
        pid = int(text.rpartition(")")[2].split()[1])
    return line
