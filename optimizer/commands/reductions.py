"""`optimizer reductions`: every way to make a graph smaller, its paper, and what it can take."""

from __future__ import annotations

import argparse

from placewire.optimizer.commands.catalogue import catalogue_parser, print_catalogue
from placewire.optimizer.commands.outcome import DONE


def parser(prog: str) -> argparse.ArgumentParser:
    return catalogue_parser(
        prog,
        "Ways to make a graph smaller before the search (--reduction), each with its paper and "
        "what it can take. All keep the graph acyclic and co-located operators together, and tie "
        "nothing that no device can hold or run.",
    )


def main(arguments: list[str], prog: str) -> int:
    options = parser(prog).parse_args(arguments)
    from placewire.optimizer.reductions.catalog import REDUCTIONS, Entry

    def details(entry: Entry) -> tuple[str]:
        return (f"takes: {entry.takes}",)

    print_catalogue(REDUCTIONS, details, as_json=options.json)
    return DONE
