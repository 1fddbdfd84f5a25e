"""`optimizer check GRAPH PLACEMENT`: verifies a placement from these two files alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from placewire.optimizer.commands.answers import answered
from placewire.optimizer.commands.arguments import EXIT_CODES, seconds
from placewire.optimizer.commands.outcome import DONE, INFEASIBLE, ended, tell


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog, description="Verify a placement against its graph.", epilog=EXIT_CODES
    )
    made.add_argument("graph", type=Path, help="graph file that the placement is for")
    made.add_argument("placement", type=Path, help="placement file, from solve")
    made.add_argument(
        "--prove",
        type=seconds,
        metavar="SECONDS",
        help="for how long to search for the proof of a bound that needs a search; default: accept "
        "such a bound unproven",
    )
    made.add_argument(
        "--variants",
        type=Path,
        nargs="+",
        metavar="GRAPH",
        help="the graphs of all variants that the placement was compared with: proves their bounds "
        "again, of which the least is said to hold for all of them",
    )
    made.add_argument("--json", action="store_true", help="the violations as JSON")
    return made


def main(arguments: list[str], prog: str) -> int:
    return ended(_check, parser(prog).parse_args(arguments))


def _check(options: argparse.Namespace) -> int:
    from placewire.optimizer.check.check import check
    from placewire.optimizer.graph.graph_file import load_graph
    from placewire.optimizer.placement import load_placement

    graph = load_graph(options.graph)
    variants = None if options.variants is None else [load_graph(f) for f in options.variants]
    violations = check(graph, load_placement(options.placement), options.prove, variants)
    if options.json:
        found = [{"where": v.where, "what": v.what} for v in violations]
        print(answered({"violations": found}))
    else:
        for violation in violations:
            tell(str(violation))
        print(f"{len(violations)} violations" if violations else "the placement holds")
    return INFEASIBLE if violations else DONE
