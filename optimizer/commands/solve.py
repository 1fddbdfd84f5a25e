"""`optimizer solve GRAPH`: finds where each operator runs, and each pair of servers' bandwidth."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from placewire.optimizer.commands.arguments import (
    EXIT_CODES,
    add_search_limits,
    output_file,
    part,
)
from placewire.optimizer.commands.clusters import (
    add_cluster_arguments,
    cluster_of,
    refuse_half_a_cluster,
)
from placewire.optimizer.commands.method_options import add_method_options, options_of, parsed
from placewire.optimizer.commands.outcome import DONE, ended, say, tell
from placewire.optimizer.commands.outputs import refuse_overwriting
from placewire.optimizer.commands.placing import place_best
from placewire.optimizer.commands.time_left import time_left
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.engines.schedulers import OWN, SCHEDULERS
from placewire.optimizer.names import DEFAULT_FLOOR, DEFAULT_SHARING, Backend, Model, SharingName
from placewire.optimizer.reductions.reduction import REDUCTIONS
from placewire.visible import visible_json

if TYPE_CHECKING:
    from placewire.optimizer.engines.solution import Solution
    from placewire.optimizer.graph.operator_graph import OperatorGraph
    from placewire.optimizer.placement import Placement
    from placewire.optimizer.problem import Problem


def parser(prog: str, given: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """given: the arguments; the parser has the options of their engine. None: of all engines."""
    made = argparse.ArgumentParser(
        prog=prog,
        description="A graph and a cluster -> a placement.",
        epilog=f"{EXIT_CODES}. `--engine NAME --help` adds the options of an engine",
    )
    made.add_argument(
        "graph",
        type=Path,
        nargs="+",
        help="graph file with times, from profile or import; several are variants of one step, cut "
        "into other numbers of micro-batches and shards, of which the best is taken",
    )
    add_cluster_arguments(made)
    _add_method_arguments(made)
    _add_search_arguments(made)
    add_method_options(made, ENGINES, "--engine", given)
    made.add_argument(
        "--out", type=output_file, help="placement file to write; gzip if it ends in .gz"
    )
    made.add_argument(
        "--out-each",
        type=Path,
        metavar="FOLDER",
        help="with --sharing auto: the best placement of each sharing, as SHARING.json",
    )
    made.add_argument("--json", action="store_true", help="the placement as JSON, not as text")
    return made


def main(arguments: list[str], prog: str) -> int:
    return ended(lambda given: _solve(_options(given, prog)), arguments)


def _options(arguments: list[str], prog: str) -> argparse.Namespace:
    made = parser(prog, arguments)
    options = parsed(made, ENGINES, "--engine", arguments)
    refuse_half_a_cluster(made, options)
    if options.start is not None and len(options.graph) > 1:
        made.error("--start is a placement of one graph: give that graph alone")
    if options.start is not None and options.engine != "auto":
        made.error("--start is for engine auto; other engines begin with nothing that is there")
    if options.out_each is not None and options.sharing != "auto":
        made.error("--out-each needs --sharing auto; for a single sharing use --out")
    if options.sharing == "auto":  # several solves would write one file
        for name in ENGINES.load(options.engine).output_options:
            if getattr(options, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                made.error(f"{flag} needs a single sharing; --sharing auto solves for all of them")
    each = (
        []
        if options.out_each is None
        else [("out_each", _file_of(one, options.out_each)) for one in get_args(SharingName)]
    )
    refuse_overwriting(made, options, ["out", *ENGINES.load(options.engine).output_options], each)
    return options


def _add_method_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=ENGINES.names,
        default="auto",
        metavar="ENGINE",
        help="default: auto, a search; heft: quick; single: one device; `optimizer engines` lists "
        "all of them",
    )
    parser.add_argument(
        "--scheduler",
        choices=(OWN, *SCHEDULERS),
        default=OWN,
        help="default: own, the engine's order; list: by the longest remaining path; fifo: in the "
        "order in which operators become ready",
    )
    parser.add_argument(
        "--sharing",
        choices=("auto", *get_args(SharingName)),
        default=DEFAULT_SHARING,
        help="default: strict, a rate for every pair of servers; auto: the time limit is divided "
        "over all sharings, and the shortest step wins",
    )
    parser.add_argument(
        "--floor",
        type=part,
        default=DEFAULT_FLOOR,
        help="the part of each NIC that is kept for the job when others want it too; default: 80%%",
    )
    parser.add_argument(
        "--model",
        choices=get_args(Model),
        default="contended",
        help="default: contended, transfers of one pair wait for each other",
    )
    parser.add_argument(
        "--backend",
        choices=get_args(Backend),
        default="gloo",
        help="default: gloo, which cuts a large message over rails by their rates; nccl: equally",
    )
    parser.add_argument(
        "--reduction",
        choices=REDUCTIONS.names,
        default="auto",
        help="default: auto, which makes large graphs smaller first; `optimizer reductions` lists "
        "all of them",
    )


def _add_search_arguments(parser: argparse.ArgumentParser) -> None:
    add_search_limits(parser, "for the learned engines, of placements to train with")
    parser.add_argument(
        "--start",
        type=Path,
        metavar="PLACEMENT",
        help="a placement of this graph on these devices, with which engine auto may begin",
    )


def _solve(options: argparse.Namespace) -> int:
    began = time.monotonic()
    from placewire.optimizer.explain import summary
    from placewire.optimizer.graph.graph_file import load_graph
    from placewire.optimizer.graph.variants import distinct, variant_names
    from placewire.optimizer.placement import save_placement
    from placewire.optimizer.problem import Problem

    graphs = distinct({str(file): load_graph(file) for file in options.graph}, say)
    names = variant_names(graphs)
    cluster = cluster_of(options, next(iter(graphs.values())))
    problems = [
        Problem(graph, cluster, model=options.model, backend=options.backend, floor=options.floor)
        for graph in graphs.values()
    ]
    size = ", ".join(str(graph.operator_count) for graph in graphs.values())
    where = f"on {len(cluster.devices)} devices"
    say(f"solving {size} operators {where} (the first time also compiles)")
    read = round(time.monotonic() - began, 4)
    graph, placement, considered = _answer(names, problems, options, began)
    stages = {"read": read, **placement.wall_seconds}
    placement = placement.model_copy(update={"wall_seconds": stages})
    if options.out is not None:
        save_placement(placement, options.out)
    if options.out_each is not None:
        options.out_each.mkdir(parents=True, exist_ok=True)
        for one in considered:
            save_placement(one, _file_of(one.sharing, options.out_each))
    if options.json:
        print(visible_json(placement.model_dump_json()))
        return DONE
    simulated = summary.timeline_of(graph, placement)
    lines = [*summary.placement_lines(placement), *summary.gantt_lines(*simulated)]
    if len(considered) > 1:
        lines += summary.considered_lines(considered, placement)
    tell("\n".join(lines))
    if options.out is not None:
        print(f"written to {options.out}")
    return DONE


def _start(problem: Problem, file: Path) -> Solution:
    """Raises ValueError where the placement is of another graph, on other devices or rails, or
    none that can run."""
    from placewire.optimizer.engines.best_sharing import solution_of
    from placewire.optimizer.placement import load_placement

    start = load_placement(file)
    names = set(problem.graph.ids)
    if start.structure_hash != problem.graph.structure_hash or set(start.operators) != names:
        raise ValueError(f"{file}: it is a placement of another graph")
    there, here = start.cluster, problem.cluster
    if (there.device_names, there.rails) != (here.device_names, here.rails):
        raise ValueError(f"{file}: it is a placement on other devices or rails")
    try:
        return solution_of(problem, start)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{file}: it cannot run: {error}") from error


def _file_of(sharing: SharingName, folder: Path) -> Path:
    return folder / f"{sharing}.json"


def _answer(
    names: Sequence[str], problems: Sequence[Problem], options: argparse.Namespace, began: float
) -> tuple[OperatorGraph, Placement, tuple[Placement, ...]]:
    from placewire.optimizer.problem import SolveSettings

    starts = () if options.start is None else (_start(problems[0], options.start),)
    settings = SolveSettings(
        gap=options.gap,
        time_limit_seconds=time_left(options.time_limit, began),
        seed=options.seed,
        moves=options.moves,
        scheduler=options.scheduler,
        options=options_of(ENGINES.load(options.engine), options),
    )
    taken, placement, considered = place_best(
        names, problems, options.engine, options.sharing, settings, options.reduction, starts
    )
    return problems[taken].graph, placement, considered
