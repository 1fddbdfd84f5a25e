"""What a command prints that runs in the background: a file for each (plan_files.py).

The first line names the process that takes the command's signals, and the command's own; the last
one says how it ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from placewire.controller.records.plan_files import files_of, is_written, new_file
from placewire.visible import visible

_SUFFIX, _LONGEST_LAST_BYTES = ".out", 100
_BEGUN = re.compile(r"-- process (\d+) runs process (\d+): ")
_ENDED = re.compile(r"-- ended with exit code (\d+)\n")


def new_output(folder: Path, plan_name: str) -> tuple[Path, int]:
    """As plan_files.new_file."""
    return new_file(folder, plan_name, _SUFFIX)


def latest_output(folder: Path, plan_name: str) -> Path | None:
    """That of the command that runs; where none does, of the one that ran last. A plan's name with
    a slash in it, which would lead to another folder, has none."""
    if plan_name != Path(plan_name).name:
        return None
    found = files_of(folder, plan_name, _SUFFIX)
    return next((one for one in reversed(found) if is_written(one)), found[-1] if found else None)


def first_line(command_pid: int, words: Sequence[str]) -> str:
    """Of this process, which runs the command."""
    return visible(f"-- process {os.getpid()} runs process {command_pid}: {' '.join(words)}")


def last_line(exit_code: int) -> str:
    return f"-- ended with exit code {exit_code}"


def exit_code_in(line: str) -> int | None:
    """The exit code that a line tells of; None where it is another line."""
    ended = _ENDED.fullmatch(line)
    return None if ended is None else int(ended[1])


def has_begun(path: Path) -> bool:
    return _processes(path) is not None


def has_ended(path: Path) -> bool:
    """Whether the command has ended: nobody writes the file, or will write more than is there."""
    if not is_written(path):
        return True
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST_LAST_BYTES))
        last = file.read().rpartition(b"\n-- ")[2]
    return exit_code_in(f"-- {last.decode(errors='replace')}") is not None


def process_of(path: Path) -> int | None:
    """The process that takes signals for a command that runs; None where neither of the two that
    the file names has it open: they are gone, and others may have their numbers."""
    with suppress(OSError):
        own = path.stat()
        for process in _processes(path) or ():
            with suppress(OSError):
                opened = (entry.stat() for entry in Path(f"/proc/{process}/fd").iterdir())
                if any(os.path.samestat(one, own) for one in opened):
                    return process
    return None


def _processes(path: Path) -> tuple[int, int] | None:
    with path.open(encoding="utf-8", errors="replace") as file:
        named = _BEGUN.match(file.readline())
    return None if named is None else (int(named[1]), int(named[2]))
