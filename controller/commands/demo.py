"""`controller demo`: shows on this machine that training is exact, fast and predicted."""

from __future__ import annotations

import argparse
from pathlib import Path

PURPOSE = "show in a lab on this machine that training is exact, fast and predicted (needs root)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-files",
        type=Path,
        metavar="DIR",
        help="keep plans, reports and their pages in this folder",
    )


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.demo import demo

    return demo(arguments.keep_files)
