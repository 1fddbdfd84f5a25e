"""Arguments that several commands have."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from placewire.controller.errors import UsageError


def add_plan(parser: argparse.ArgumentParser, *, previewed: bool = False) -> None:
    """Of a command that talks with the agents of a plan's servers. previewed: it also takes what
    `preview --out` wrote."""
    what = "the plan.yaml, or what `preview --out` wrote" if previewed else "the plan.yaml"
    metavar = "PLAN|PREVIEW" if previewed else "PLAN"
    parser.add_argument("plan", type=Path, metavar=metavar, help=what)
    add_json(parser)
    add_link(parser)
    parser.add_argument(
        "--no-lab", action="store_true", help="do not enter a lab of this plan's name"
    )


def add_link(parser: argparse.ArgumentParser) -> None:
    """Of a command that agents dial in to."""
    add_state_dir(parser)
    parser.add_argument(
        "--listen",
        default="0.0.0.0:7440",
        metavar="HOST:PORT",
        help="where agents dial in (default: %(default)s)",
    )


def require_writable(out: Path | None) -> None:
    """Of `--out`, before long work is done for it. Raises UsageError."""
    if out is None:
        return
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder", remedy="name a file in it")
    if not os.access(out.resolve().parent, os.W_OK):
        raise UsageError(f"--out {out}: its folder cannot be written to")


def plan_name(text: str) -> str:
    """Of PLAN|NAME: the name in a plan file that is there, or the text itself. Raises PlanError."""
    if not Path(text).is_file():
        return text
    from placewire.controller.plan.plan_file import load_plan

    return load_plan(Path(text)).name


def add_no_measurement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-measurement", action="store_true", help="only read back: sends nothing"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Path(os.environ.get("PLACEWIRE_STATE_DIR", "/var/lib/placewire")),
        help="certificates, journal and cache (default: %(default)s, or PLACEWIRE_STATE_DIR of the "
        "environment)",
    )
