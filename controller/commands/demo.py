"""`controller demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

PURPOSE = "the main job on this machine, in a lab of its own"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-files", type=Path, metavar="DIR", help="keep plans and reports here"
    )


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.demo import demo

    return demo(arguments.keep_files)
