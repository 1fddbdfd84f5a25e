"""The option --version of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action=_Version, help="print the version, and end")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than a short command."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"placewire {version('placewire')}")
        parser.exit()
