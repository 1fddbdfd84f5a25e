"""What the benchmarks' command lines share: their options, and where figures were measured."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.table import Table

ROOT = Path(__file__).resolve().parents[1]


def options(prog: str, description: str, items: Sequence[int], file: str) -> argparse.Namespace:
    """items: list[int], all if none are named; report: an existing folder, or None."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, nargs="+", choices=items, default=list(items))
    parser.add_argument("--report", type=Path, help=f"folder for {file} and pictures")
    found = parser.parse_args()
    if found.report is not None:
        found.report.mkdir(parents=True, exist_ok=True)
    return found


def run(package: str, description: str, items: Mapping[int, Sequence[str]], head: str) -> None:
    """A benchmark's command line: makes the tables of the items asked for, prints them, and writes
    them into NAME.md of the package's name.

    items: modules of the package by item, each with `tables(pictures: Path | None) ->
    Iterable[Table]`. A table's title begins with its item: "2. …".
    """
    file = f"{package.rpartition('.')[2]}.md"
    asked = options(f"python -m {package}", description, list(items), file)
    for item in asked.items:
        made = []
        # Each as it comes: an hour's figures are not lost with the last.
        for table in _tables(package, items[item], asked.report):
            made.append(table)
            print(table.text(), flush=True)
            if asked.report is not None:
                write_tables(item, made, asked.report / file, head)


def _tables(package: str, modules: Sequence[str], pictures: Path | None) -> Iterable[Table]:
    for name in modules:
        yield from importlib.import_module(f"{package}.{name}").tables(pictures)


def write_tables(item: int, tables: Sequence[Table], file: Path, head: str) -> None:
    """The item's tables in place of those that the file has; items in order."""
    sections = _sections(file.read_text()) if file.exists() else {}
    when = f"Measured at commit {commit()} on {time.strftime('%Y-%m-%d')}, {machine()}.\n"
    sections[item] = "\n".join(f"{table.markdown()}\n{when}" for table in tables)
    file.write_text("\n".join([head, *(sections[key] for key in sorted(sections))]))


def _sections(text: str) -> dict[int, str]:
    """By item, from the first heading of an item to the first of the next."""
    found: dict[int, str] = {}
    for part in re.split(r"^(?=## \d+\. )", text, flags=re.M)[1:]:
        item = int(part.split(".")[0].removeprefix("## "))
        found[item] = "\n".join(filter(None, [found.get(item), part.rstrip("\n") + "\n"]))
    return found


def commit() -> str:
    """The short name of what is checked out."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
