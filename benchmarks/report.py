"""What the benchmarks' command lines share: their options, and where figures were measured."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

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


def commit() -> str:
    """The short name of what is checked out."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
