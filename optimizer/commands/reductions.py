"""`optimizer reductions`: lists every way to make a graph smaller, and its paper."""

from __future__ import annotations

import argparse

from placewire.optimizer.commands.method_list import list_parser, print_methods
from placewire.optimizer.commands.outcome import ended


def parser(prog: str) -> argparse.ArgumentParser:
    return list_parser(
        prog,
        "Ways to make a graph smaller before the search (--reduction), each with its paper, and "
        "with --graph and --cluster, whether it takes that problem. All keep the graph acyclic "
        "and co-located operators together, and tie nothing that no device can hold or run.",
    )


def main(arguments: list[str], prog: str) -> int:
    return ended(_reductions, parser(prog).parse_args(arguments))


def _reductions(options: argparse.Namespace) -> int:
    from placewire.optimizer.reductions.reduction import REDUCTIONS

    return print_methods(REDUCTIONS, options)
