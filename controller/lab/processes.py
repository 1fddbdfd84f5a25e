"""Finds the processes of a lab, and ends them. Pids are reused, so a pid alone proves nothing."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from placewire.controller.lab.record import LabRecord, ProcessRecord
from placewire.controller.lab.system import NAMESPACE_DIRECTORY
from placewire.controller.own_lab import LAB_VARIABLE
from placewire.job.contract.specification import SCRIPT_WORDS

_TERM_SECONDS = 1.5
# A killed process ends when a processor is free for that.
_KILL_SECONDS = 15.0
_PROC = Path("/proc")
# More than what a rank is told takes; its user could write more there.
_MOST_BYTES_TOLD = 2**20


def describe(pid: int, argv: Sequence[str]) -> ProcessRecord:
    """argv: the program's own, without programs like nsenter that it was started through."""
    return ProcessRecord(pid=pid, start_ticks=start_ticks(pid) or 0, argv=tuple(argv))


def start_ticks(pid: int) -> int | None:
    """Returns the start, in ticks since boot; None where the process has ended, reaped or not."""
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(process: ProcessRecord) -> bool:
    """Whether this very process runs: same start, same command line (perhaps before its exec)."""
    if start_ticks(process.pid) != process.start_ticks:
        return False
    argv = _fields(process.pid, "cmdline")
    return tuple(argv[-len(process.argv) :]) == process.argv


def processes_of(record: LabRecord) -> list[int]:
    """Returns recorded processes, and those in the lab's namespaces with its mark (iperf3, ranks, a
    daemon that could not be recorded any more); never this process or an ancestor of it."""
    recorded = {process.pid for process in record.processes if is_alive(process)}
    inside = _in_namespaces(record.namespaces)
    marked = {pid for pid in inside if _is_marked(pid, record.name)}
    return sorted((recorded | marked) - _own_line())


def programs_inside(record: LabRecord, namespace: str, program: Sequence[str]) -> list[int]:
    """Returns the lab's processes in that namespace whose command line has these words in a row."""
    words = "\0".join(["", *program, ""])
    return sorted(
        pid
        for pid in _in_namespaces([namespace]) - _own_line()
        if _is_marked(pid, record.name) and words in "\0".join(["", *_fields(pid, "cmdline"), ""])
    )


def runs_a_script(pid: int) -> bool:
    """Whether this is a rank's program that starts a script's processes. What it was told is a file
    in memory, which it holds open."""
    told = Path((_fields(pid, "cmdline") or [""])[-1])
    if told.parent != Path("/dev/fd"):
        return False
    try:
        # A process with the lab's mark may name a pipe or a terminal there. We read nothing from
        # these: the process would miss it, and a read may wait for more.
        with open(_PROC / str(pid) / "fd" / told.name, "rb", opener=_without_waiting) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return is_regular and SCRIPT_WORDS.encode() in file.read(_MOST_BYTES_TOLD)
    except OSError:
        return False


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def running_seconds(pid: int) -> float:
    """Returns the time since the process started; 0 where it has ended."""
    ticks = start_ticks(pid)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return 0.0 if ticks is None else max(0.0, now - ticks / os.sysconf("SC_CLK_TCK"))


def strangers_in(record: LabRecord) -> list[int]:
    """Returns processes in the lab's namespaces that the lab did not start, e.g. a shell."""
    inside = _in_namespaces(record.namespaces) - _own_line()
    return sorted(pid for pid in inside if not _is_marked(pid, record.name))


def end(pids: Iterable[int], term_seconds: float = _TERM_SECONDS) -> list[int]:
    """Ends processes by SIGTERM, then, so many seconds later, by SIGKILL. Returns those that are
    left."""
    begun = {pid: ticks for pid in pids if (ticks := start_ticks(pid)) is not None}
    for number, seconds in ((signal.SIGTERM, term_seconds), (signal.SIGKILL, _KILL_SECONDS)):
        for pid, ticks in begun.items():
            if start_ticks(pid) == ticks:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            begun = {pid: ticks for pid, ticks in begun.items() if start_ticks(pid) == ticks}
            if not begun:
                return []
            time.sleep(0.02)
    return sorted(begun)


def _in_namespaces(namespaces: Iterable[str]) -> set[int]:
    ours = set()
    for namespace in namespaces:
        with suppress(FileNotFoundError):
            ours.add((NAMESPACE_DIRECTORY / namespace).stat().st_ino)
    found = set()
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # the process has just ended
                if (entry / "ns/net").stat().st_ino in ours:
                    found.add(int(entry.name))
    return found


def _is_marked(pid: int, lab: str) -> bool:
    return f"{LAB_VARIABLE}={lab}" in _fields(pid, "environ")


def _fields(pid: int, file: str) -> list[str]:
    try:
        text = (_PROC / str(pid) / file).read_text(errors="replace")
    except OSError:
        return []
    return text.rstrip("\0").split("\0")


def _own_line() -> set[int]:
    """Returns this process and its ancestors: a lab may be taken down from inside itself."""
    line, pid = set(), os.getpid()
    while pid > 1:
        line.add(pid)
        pid = int(_stat(pid)[1])
    return line


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the third on: state (0), parent (1), start (19).
    The second is the name in brackets, which may hold anything."""
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
