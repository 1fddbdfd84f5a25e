"""The command line of the benchmarks, and the reports to which they write their tables."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.table import Table

ROOT = Path(__file__).resolve().parents[1]
# Stands behind the machine where other programs ran meanwhile.
DISTURBED = "beside other programs"
# Stands for a commit that nobody can name; what was measured at it counts as older than any other.
UNKNOWN = "unknown"


def run(package: str, description: str, items: Mapping[int, Sequence[str]], head: str) -> None:
    """Runs a benchmark's command line: makes the tables of the items asked for, prints them, and
    writes them into a report named after the package.

    items: by item, the functions `MODULE.FUNCTION` of the package that make its tables. Each takes
    the folder for pictures, or None, and returns an iterable. A table's title begins with its item:
    "2. …".
    """
    # As an exception, SIGTERM lets every `with` take down the labs and processes that it made.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # A shell's background job ignores SIGINT otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = f"{package.rpartition('.')[2]}.md"
    parser = argparse.ArgumentParser(
        prog=f"python -m {package}", description=description,
        formatter_class=argparse.RawTextHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--items", type=int, nargs="+", choices=list(items), default=list(items))
    parser.add_argument("--report", type=Path, help=f"folder for {file} and pictures")
    parser.add_argument("--disturbed", action="store_true", help="other programs run meanwhile")
    asked = parser.parse_args()
    if asked.report is not None:
        asked.report.mkdir(parents=True, exist_ok=True)
    for item in asked.items:
        made: list[Table] = []
        for name in items[item]:
            module, _, function = name.partition(".")
            makes = getattr(importlib.import_module(f"{package}.{module}"), function)
            # Each table is written as it comes: a failure later loses no figures.
            for table in makes(asked.report):
                made.append(table)
                print(table.text(), flush=True)
                if asked.report is not None:
                    write_tables(item, made, asked.report / file, head, disturbed=asked.disturbed)


def write_tables(
    item: int, tables: Sequence[Table], file: Path, head: str, *, disturbed: bool = False
) -> None:
    """Replaces the item's tables in the file; the sections of the items stand in order."""
    sections = _sections(file.read_text()) if file.exists() else {}
    where = f"{machine()}, {DISTURBED}" if disturbed else machine()
    when = f"Measured at commit {commit()} on {time.strftime('%Y-%m-%d')}, {where}.\n"
    sections[item] = "\n".join(f"{table.markdown()}\n{when}" for table in tables)
    file.write_text("\n".join([head, *(sections[key] for key in sorted(sections))]))


def _sections(text: str) -> dict[int, str]:
    """The text by item, from the first heading of an item to the first of the next."""
    found: dict[int, str] = {}
    for part in re.split(r"^(?=## \d+\. )", text, flags=re.M)[1:]:
        item = int(part.split(".")[0].removeprefix("## "))
        found[item] = "\n".join(filter(None, [found.get(item), part.rstrip("\n") + "\n"]))
    return found


def commit() -> str:
    """The short name of the commit that is checked out; UNKNOWN in a copy without git's files."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else UNKNOWN


def machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"


def peak_memory_bytes() -> int:
    """The most resident memory of this program so far. (ru_maxrss would begin with the size of the
    process that started it.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
