"""`optimizer explain PLACEMENT --graph GRAPH`: says why a step takes as long as it does."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from placewire.optimizer.commands.arguments import EXIT_CODES
from placewire.optimizer.commands.outcome import DONE, InputError, ended, tell
from placewire.visible import json_document


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="Why a placement's step takes as long as it does: the critical path, who sends "
        "to whom at what rate, and what would shorten it most.",
        epilog=EXIT_CODES,
    )
    made.add_argument("placement", type=Path, help="placement file, from solve")
    made.add_argument(
        "--graph", type=Path, help="its graph file; without it only the traffic can be shown"
    )
    made.add_argument("--json", action="store_true", help="the explanation as JSON")
    return made


def main(arguments: list[str], prog: str) -> int:
    return ended(_explain, parser(prog).parse_args(arguments))


def _explain(options: argparse.Namespace) -> int:
    from placewire.optimizer.explain.summary import placement_lines
    from placewire.optimizer.placement import load_placement

    placement = load_placement(options.placement)
    if options.graph is None:
        if options.json:
            raise InputError("--json needs the graph: give --graph")
        hint = "give --graph for the critical path and what would shorten it"
        tell("\n".join([*placement_lines(placement), hint]))
        return DONE
    from placewire.optimizer.check.check import check
    from placewire.optimizer.explain.explanation import explain
    from placewire.optimizer.explain.explanation_lines import explanation_lines
    from placewire.optimizer.graph.graph_file import load_graph

    graph = load_graph(options.graph)
    if violations := check(graph, placement):
        raise InputError(f"the placement does not hold: {violations[0]}")
    explanation = explain(graph, placement)
    if options.json:
        print(json_document(asdict(explanation)))
    else:
        tell("\n".join(explanation_lines(placement, explanation)))
    return DONE
