"""The `optimizer` command: capture, profile, solve, check, show.

Exit codes: 0 done, 2 usage, 3 bad input, 4 no feasible placement, or violations found by `check`.
Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from optimizer.arguments import EXIT_CODES, fraction, seconds, whole
from optimizer.names import EngineName, Model, ReductionName, Sharing

if TYPE_CHECKING:
    from optimizer.cluster import Cluster
    from optimizer.engines.solution import Progress

BAD_INPUT, INFEASIBLE = 3, 4


class InputError(ValueError):
    """A file or an argument that is not what it should be."""


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["capture"]:
        from optimizer.capture.__main__ import main as capture_main

        return capture_main(given[1:], "optimizer capture")
    if given[:1] == ["profile"]:
        from optimizer.profile.__main__ import main as profile_main

        return profile_main(given[1:], "optimizer profile")
    options = _parser().parse_args(given)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    commands = {"solve": _solve, "check": _check, "show": _show}
    try:
        return commands[options.command](options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        return _complain(f"{error.filename or ''}: {error.strerror or error}", BAD_INPUT)
    except ValueError as error:  # InputError, GraphError, PlacementError, InfeasibleError
        from optimizer.problem import InfeasibleError

        return _complain(
            str(error), INFEASIBLE if isinstance(error, InfeasibleError) else BAD_INPUT
        )


def _complain(what: str, code: int) -> int:
    print(f"error: {what}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="optimizer",
        description="Where each operator runs, and the bandwidth of each pair.",
        epilog=EXIT_CODES,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("capture", help="a PyTorch training step -> a graph file without times")
    commands.add_parser("profile", help="capture, and measure each operator on this machine")
    solve = commands.add_parser(
        "solve", help="a graph and a cluster -> a placement file", epilog=EXIT_CODES
    )
    solve.add_argument("graph", type=Path, help="graph file with times, from profile")
    solve.add_argument(
        "--cluster", type=Path, required=True, help="cluster file, like examples/clusters/*.json"
    )
    solve.add_argument(
        "--engine",
        choices=get_args(EngineName),
        default="auto",
        help="default: auto, a search; heft: quick; single: one device",
    )
    solve.add_argument(
        "--sharing",
        choices=get_args(Sharing),
        default="strict",
        help="default: strict, a rate for every pair of servers",
    )
    solve.add_argument(
        "--model",
        choices=get_args(Model),
        default="contended",
        help="default: contended, transfers of one pair wait for each other",
    )
    solve.add_argument(
        "--reduction",
        choices=get_args(ReductionName),
        default="auto",
        help="default: auto, large graphs are made smaller first",
    )
    solve.add_argument(
        "--gap", type=fraction, default=0.05, help="stop when this near to the bound; default: 5%%"
    )
    solve.add_argument("--time-limit", type=seconds, default=60.0, help="seconds; default: 60")
    solve.add_argument("--seed", type=whole, default=0, help="of the search; default: 0")
    solve.add_argument(
        "--moves", type=whole, help="annealing moves instead of the time limit: repeatable"
    )
    solve.add_argument("--out", type=Path, required=True, help="placement file to write")
    solve.add_argument("--json", action="store_true", help="the result as JSON, not as text")
    check = commands.add_parser(
        "check", help="verify a placement against its graph", epilog=EXIT_CODES
    )
    check.add_argument("graph", type=Path, help="graph file that the placement is for")
    check.add_argument("placement", type=Path, help="placement file, from solve")
    check.add_argument("--json", action="store_true", help="the violations as JSON")
    show = commands.add_parser("show", help="a graph or a placement in words", epilog=EXIT_CODES)
    show.add_argument("file", type=Path, help="graph or placement file")
    show.add_argument("--graph", type=Path, help="a placement's graph: adds a bar per device")
    return parser


def _read_cluster(path: Path) -> Cluster:
    """Raises InputError naming the place in the file."""
    from pydantic import ValidationError

    from optimizer.cluster import Cluster
    from optimizer.graph import read_json
    from optimizer.mistakes import first_mistake

    try:
        return Cluster.model_validate(read_json(path))
    except ValidationError as error:
        raise InputError(f"{path}: {first_mistake(error)}") from error


def _solve(options: argparse.Namespace) -> int:
    from optimizer.engines.registry import place
    from optimizer.graph import load_graph
    from optimizer.placement import save_placement
    from optimizer.problem import Problem, SolveSettings
    from optimizer.summary import gantt_lines, placement_lines, timeline_of

    graph = load_graph(options.graph)
    problem = Problem(graph, _read_cluster(options.cluster), options.sharing, options.model)
    settings = SolveSettings(options.gap, options.time_limit, options.seed, options.moves)
    print(
        f"solving {graph.operator_count} operators on {len(problem.cluster.devices)} devices "
        "(the first time also compiles)",
        file=sys.stderr,
        flush=True,
    )
    placement = place(problem, options.engine, settings, options.reduction, _Progress())
    save_placement(placement, options.out)
    if options.json:
        print(placement.model_dump_json())
        return 0
    lines = [*placement_lines(placement), *gantt_lines(*timeline_of(graph, placement))]
    print("\n".join([*lines, f"written to {options.out}"]))
    return 0


class _Progress:
    """A line when the incumbent improves, and at least every few seconds."""

    def __init__(self) -> None:
        self._best = float("inf")
        self._said = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        better = progress.incumbent_seconds < self._best * 0.999
        if not (better and now - self._said > 0.2) and now - self._said < 3.0:
            return
        self._best, self._said = min(self._best, progress.incumbent_seconds), now
        print(
            f"{progress.seconds:6.1f} s  best {progress.incumbent_seconds * 1e3:.3f} ms, bound "
            f"{progress.bound_seconds * 1e3:.3f} ms, {progress.moves} moves",
            file=sys.stderr,
            flush=True,
        )


def _check(options: argparse.Namespace) -> int:
    from optimizer.check import check
    from optimizer.graph import load_graph
    from optimizer.placement import load_placement

    graph = load_graph(options.graph)
    placement = load_placement(options.placement)
    violations = check(graph, placement)
    if options.json:
        print(json.dumps([{"where": v.where, "what": v.what} for v in violations]))
    else:
        for violation in violations:
            print(violation)
        print(f"{len(violations)} violations" if violations else "the placement holds")
    return INFEASIBLE if violations else 0


def _show(options: argparse.Namespace) -> int:
    from optimizer.graph import graph_from_json, load_graph, read_json
    from optimizer.placement import placement_from_json
    from optimizer.summary import gantt_lines, graph_lines, placement_lines, timeline_of

    document = read_json(options.file)
    if isinstance(document, dict) and "tensors" in document:
        lines = graph_lines(graph_from_json(document, where=str(options.file)))
    else:
        placement = placement_from_json(document, where=str(options.file))
        lines = placement_lines(placement)
        if options.graph is not None:
            from optimizer.check import check

            graph = load_graph(options.graph)
            if violations := check(graph, placement):
                raise InputError(f"the placement does not hold: {violations[0]}")
            lines += gantt_lines(*timeline_of(graph, placement))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
