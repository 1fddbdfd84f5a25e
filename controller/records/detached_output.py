"""What a command prints that runs in the background: a file for each (plan_files.py).

The first line names the process that takes the command's signals, the last one says how it ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from placewire.controller.records.plan_files import files_of, is_written, new_file

_SUFFIX = ".out"
_BEGUN = re.compile(r"-- process (\d+): ")
_ENDED = re.compile(r"-- ended with exit code (\d+)\n")


def new_output(folder: Path, plan_name: str) -> tuple[Path, int]:
    """As plan_files.new_file."""
    return new_file(folder, plan_name, _SUFFIX)


def outputs_of(folder: Path, plan_name: str) -> list[Path]:
    """Oldest first. A plan's name with a slash in it, which would lead to another folder, has
    none."""
    return files_of(folder, plan_name, _SUFFIX) if plan_name == Path(plan_name).name else []


def first_line(words: Sequence[str]) -> bytes:
    """Of this process, which runs the command `words`."""
    return f"-- process {os.getpid()}: {' '.join(words)}\n".encode(errors="backslashreplace")


def last_line(exit_code: int) -> bytes:
    return f"-- ended with exit code {exit_code}\n".encode()


def exit_code_in(line: str) -> int | None:
    """The exit code that a line tells of; None where it is another line."""
    ended = _ENDED.fullmatch(line)
    return None if ended is None else int(ended[1])


def process_of(path: Path) -> int | None:
    """The process that takes signals for the command; None where it has ended, or another process
    has its number by now."""
    if not is_written(path):
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        named = _BEGUN.match(file.readline())
    if named is None:
        return None
    with suppress(OSError):
        words = Path(f"/proc/{named[1]}/cmdline").read_bytes().split(b"\0")
        if os.fsencode(path) in words:
            return int(named[1])
    return None
