"""`optimizer beside GRAPH FIRST`: places another bucket's step beside the first one's placement."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from placewire.optimizer.commands.arguments import (
    EXIT_CODES,
    add_search_limits,
    output_file,
)
from placewire.optimizer.commands.outcome import DONE, ended, say, tell
from placewire.optimizer.commands.outputs import refuse_overwriting
from placewire.optimizer.commands.progress import ProgressLines
from placewire.optimizer.commands.time_left import time_left


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="The graph of another bucket of a model, and the placement of its first one -> "
        "a placement on the same cluster, in which parameters stay where the first one has them.",
        epilog=EXIT_CODES,
    )
    made.add_argument("graph", type=Path, help="graph file with times, from profile --bucket")
    made.add_argument("first", type=Path, help="placement file of the first bucket, from solve")
    add_search_limits(made)
    made.add_argument(
        "--out",
        type=output_file,
        required=True,
        help="placement file to write; gzip if it ends in .gz",
    )
    return made


def main(arguments: list[str], prog: str) -> int:
    made = parser(prog)
    options = made.parse_args(arguments)
    refuse_overwriting(made, options, ["out"])
    return ended(_place, options)


def _place(options: argparse.Namespace) -> int:
    began = time.monotonic()
    from placewire.optimizer.engines.beside import place_beside
    from placewire.optimizer.explain import summary
    from placewire.optimizer.graph.graph_file import load_graph
    from placewire.optimizer.placement import load_placement, save_placement
    from placewire.optimizer.problem import SolveSettings

    graph, first = load_graph(options.graph), load_placement(options.first)
    say(f"placing {graph.operator_count} operators beside {options.first}")
    settings = SolveSettings(
        gap=options.gap,
        time_limit_seconds=time_left(options.time_limit, began),
        seed=options.seed,
        moves=options.moves,
    )
    placement = place_beside(graph, first, settings, ProgressLines())
    save_placement(placement, options.out)
    tell("\n".join(summary.placement_lines(placement)))
    print(f"written to {options.out}")
    return DONE
