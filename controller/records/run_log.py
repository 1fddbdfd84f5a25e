"""Logs what ranks print, and the steps of placed ones: a file for each run (plan_files.py).

A log does not grow beyond LONGEST_BYTES: where there is more, its beginning and its newest end are
kept, and a line in between says how much is left out.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from placewire.controller.records.plan_files import files_of, new_file, nobody_writes
from placewire.visible import visible

_SUFFIX = ".log"
LONGEST_BYTES = 32 * 2**20
_LEFT_OUT = "-- "
# How often one that follows a log looks for new lines.
_LOOK_SECONDS = 0.2


class RunLog:
    """Writes lines like `10:15:02 rank 0 | what it printed`, without anything that a terminal would
    obey. Only the user who runs the controller may read the file: what a model prints is that
    user's business.

    file: may be read, too. longest_bytes: of the file. left_out_bytes: how much of the log is gone.
    """

    def __init__(
        self, file: IO[str], path: Path | None = None, longest_bytes: int = LONGEST_BYTES
    ) -> None:
        self._file, self._longest_bytes = file, longest_bytes
        self._lost = False
        self.left_out_bytes = self._beginning_bytes = 0
        self.path = path or Path(file.name)

    def write(self, rank: int, text: str) -> None:
        self.write_line(f"{time.strftime('%H:%M:%S')} {rank_mark(rank)}{visible(text)}")

    def write_line(self, line: str) -> None:
        """A line that cannot be written is lost, but ends no training. The loss is told once. line:
        without anything that a terminal would obey."""
        try:
            if os.fstat(self._file.fileno()).st_size > self._longest_bytes:
                self._shorten()
            self._file.write(f"{line}\n")
        except OSError as error:
            if not self._lost:
                print(f"controller: {self.path}: {error.strerror}; lines are lost", file=sys.stderr)
            self._lost = True

    def _shorten(self) -> None:
        """Leaves out the middle, in whole lines. It needs no room on the disk."""
        file, part = self._file.fileno(), self._longest_bytes // 4
        size = os.fstat(file).st_size
        former = 0
        if self.left_out_bytes:  # The line that says so is there, and goes with what it stands for.
            former = len(self._left_out(self.left_out_bytes))
        else:
            self._beginning_bytes = os.pread(file, part, 0).rfind(b"\n") + 1
        begins = self._beginning_bytes
        tail = os.pread(file, part, size - part).partition(b"\n")[2]
        left_out_bytes = self.left_out_bytes + size - begins - len(tail) - former
        kept = self._left_out(left_out_bytes) + tail
        os.pwrite(file, kept, begins)
        os.ftruncate(file, begins + len(kept))
        self.left_out_bytes = left_out_bytes  # Not before the file says so.
        self._file.seek(0, os.SEEK_END)

    def _left_out(self, count_bytes: int) -> bytes:
        longest = self._longest_bytes / 2**20
        return (
            f"{_LEFT_OUT}{count_bytes} bytes are left out here: a log has no more than "
            f"{longest:g} MiB\n"
        ).encode()


@dataclass(frozen=True)
class Printed:
    """A line of a log. time: HH:MM:SS on the controller's machine."""

    time: str
    rank: int
    text: str


def printed(lines: Iterable[str]) -> Iterator[Printed]:
    """Parses the lines of a log; leaves out lines that a killed controller wrote in part."""
    for line in lines:
        if found := re.fullmatch(r"(\d\d:\d\d:\d\d) rank (\d+) \| (.*)\n", line, re.DOTALL):
            yield Printed(found[1], int(found[2]), found[3])


def says_left_out(line: str) -> bool:
    """Whether this line of a log stands for others. No line of a rank begins so."""
    return line.startswith(_LEFT_OUT)


def rank_mark(rank: int) -> str:
    return f"rank {rank} | "


@contextmanager
def run_log(folder: Path, plan_name: str) -> Iterator[RunLog]:
    """folder: of all logs. The log of a run is empty where ranks print nothing and no step ends.
    Where it cannot be made, that is told once, and lines are lost."""
    try:
        path, descriptor = new_file(folder, plan_name, _SUFFIX)
    except OSError as error:
        where = error.filename or folder
        print(f"controller: {where}: {error.strerror}; no log is kept of this run", file=sys.stderr)
        path, descriptor = Path(os.devnull), os.open(os.devnull, os.O_RDWR)
    file = os.fdopen(descriptor, "w+", buffering=1, encoding="utf-8", errors="backslashreplace")
    try:
        yield RunLog(file, path)
    finally:
        with suppress(OSError):  # closing tries once more to write lines that were lost
            file.close()


def followed(path: Path) -> Iterator[str]:
    """Yields the lines of a file as they are written, and ends when nobody writes it any more."""
    with path.open("rb") as log:
        begun = b""  # of a line
        while True:
            complete = nobody_writes(log.fileno())
            for piece in iter(log.readline, b""):
                begun += piece
                if begun.endswith(b"\n"):
                    yield begun.decode(errors="replace")
                    begun = b""
            if complete:
                return
            if os.fstat(log.fileno()).st_size < log.tell():  # It was shortened.
                log.seek(0, os.SEEK_END)
                begun = b""
                yield f"{_LEFT_OUT}what was logged in a moment is left out here\n"
            time.sleep(_LOOK_SECONDS)


def runs_of(folder: Path, plan_name: str) -> list[Path]:
    """The logs of this plan's runs, oldest first."""
    return files_of(folder, plan_name, _SUFFIX)
