"""`optimizer engines`: lists every placement method, its paper, and what it takes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from placewire.optimizer.commands.method_list import list_parser, print_methods
from placewire.optimizer.commands.outcome import ended

if TYPE_CHECKING:
    from placewire.optimizer.engines.engine import Engine

_ALL = (
    "Every method works under any model and sharing: it decides by its own view of the network, "
    "and its answer is scored and checked under yours; one that exceeds a memory is refused."
)


def parser(prog: str) -> argparse.ArgumentParser:
    return list_parser(prog, f"Placement methods, each with its paper and what it takes. {_ALL}")


def main(arguments: list[str], prog: str) -> int:
    return ended(_engines, parser(prog).parse_args(arguments))


def _engines(options: argparse.Namespace) -> int:
    from placewire.optimizer.engines.engine import ENGINES

    def details(engine: Engine) -> tuple[str, str]:
        return (
            f"decides: {engine.decides}; sees: {engine.sees}",
            f"memory: {engine.memory}; unlike devices: {engine.unlike}",
        )

    code = print_methods(ENGINES, options, details)
    if not options.json:
        print(_ALL)
    return code
