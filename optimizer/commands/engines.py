"""`optimizer engines`: every placement method, its paper, and what it can take."""

from __future__ import annotations

import argparse

from placewire.optimizer.commands.catalogue import catalogue_parser, print_catalogue
from placewire.optimizer.commands.outcome import DONE

_ALL = (
    "Any may be asked under any model and sharing: a method decides by its own view of the network "
    "and what it finds is scored and checked under yours; what exceeds a memory is refused."
)


def parser(prog: str) -> argparse.ArgumentParser:
    what = f"Placement methods, each with its paper and what it can take. {_ALL}"
    return catalogue_parser(prog, what)


def main(arguments: list[str], prog: str) -> int:
    options = parser(prog).parse_args(arguments)
    from placewire.optimizer.engines.catalog import ENGINES, Engine

    def details(engine: Engine) -> tuple[str, str]:
        return (
            f"decides: {engine.decides}; sees: {engine.sees}",
            f"memory: {engine.memory}; unlike devices: {engine.unlike}",
        )

    print_catalogue(ENGINES, details, as_json=options.json)
    if not options.json:
        print(_ALL)
    return DONE
