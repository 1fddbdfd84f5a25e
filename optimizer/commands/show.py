"""`optimizer show FILE`: shows a graph or a placement in words and bars."""

from __future__ import annotations

import argparse
from pathlib import Path

from placewire.optimizer.commands.arguments import EXIT_CODES
from placewire.optimizer.commands.outcome import DONE, InputError, ended, tell


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog, description="A graph or a placement in words.", epilog=EXIT_CODES
    )
    made.add_argument("file", type=Path, help="graph or placement file")
    made.add_argument("--graph", type=Path, help="a placement's graph: adds a bar per device")
    return made


def main(arguments: list[str], prog: str) -> int:
    return ended(_show, parser(prog).parse_args(arguments))


def _show(options: argparse.Namespace) -> int:
    from placewire.optimizer.explain import summary
    from placewire.optimizer.graph.graph_file import graph_from_json, load_graph
    from placewire.optimizer.graph.json_file import read_json
    from placewire.optimizer.placement import placement_from_json

    document = read_json(options.file)
    if isinstance(document, dict) and "tensors" in document:
        lines = summary.graph_lines(graph_from_json(document, where=str(options.file)))
    else:
        placement = placement_from_json(document, where=str(options.file))
        lines = summary.placement_lines(placement)
        if options.graph is not None:
            from placewire.optimizer.check.check import check

            graph = load_graph(options.graph)
            if violations := check(graph, placement):
                raise InputError(f"the placement does not hold: {violations[0]}")
            lines += summary.gantt_lines(*summary.timeline_of(graph, placement))
    tell("\n".join(lines))
    return DONE
