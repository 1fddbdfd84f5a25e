"""`optimizer advise GRAPH …`: what to train a step with, one device, DDP, FSDP, pipelines or us."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.optimizer.commands.answers import AdviseAnswer, answered
from placewire.optimizer.commands.arguments import EXIT_CODES, output_file, seconds, whole
from placewire.optimizer.commands.clusters import (
    add_cluster_arguments,
    cluster_of,
    refuse_half_a_cluster,
)
from placewire.optimizer.commands.outcome import DONE, ended, say, tell
from placewire.optimizer.commands.outputs import refuse_overwriting
from placewire.optimizer.commands.placing import place_best
from placewire.optimizer.commands.time_left import time_left
from placewire.optimizer.quantities import format_bytes, format_seconds, format_step

if TYPE_CHECKING:
    from placewire.optimizer.cluster import Cluster
    from placewire.optimizer.graph.operator_graph import OperatorGraph
    from placewire.optimizer.peers.peer import PeerStep
    from placewire.optimizer.placement import Placement

OURS, ALONE = "placewire", "one device"
# Steps that differ by less are ties, and the one that is easier to run wins.
_TIE = 0.02
_COLUMNS = 100
_SIMPLE = (ALONE, "ddp", "fsdp")


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="What to train a step with: one device, DistributedDataParallel, FSDP, a "
        "pipeline, or a placement of ours; each simulated on all NICs of the cluster. Touches "
        "nothing.",
        epilog=EXIT_CODES,
    )
    made.add_argument(
        "graph",
        type=Path,
        nargs="+",
        help="graph files with times, variants of one step: `optimizer profile MODEL --accumulate "
        "1 2 4 8 …` writes them; ddp and fsdp need one with a micro-batch for each device",
    )
    add_cluster_arguments(made)
    made.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        help="seconds for reading, simulating DDP, FSDP and pipelines, and the search, which has "
        "at least half; default: 60",
    )
    made.add_argument("--seed", type=whole, default=0, help="seed of the search; default: 0")
    made.add_argument(
        "--out", type=output_file, help="placement file to write; gzip if it ends in .gz"
    )
    made.add_argument("--json", action="store_true", help="the table and the advice as JSON")
    return made


def main(arguments: list[str], prog: str) -> int:
    made = parser(prog)
    options = made.parse_args(arguments)
    refuse_half_a_cluster(made, options)
    refuse_overwriting(made, options, ["out"])
    return ended(_advise, options)


def _advise(options: argparse.Namespace) -> int:
    began = time.monotonic()
    from placewire.optimizer.explain.parallelism import parallelism_words, stages
    from placewire.optimizer.graph.graph_file import load_graph
    from placewire.optimizer.graph.variants import distinct, variant_names
    from placewire.optimizer.network.sharings import SHARINGS, part_of_bound
    from placewire.optimizer.peers.compare import peers_of
    from placewire.optimizer.placement import save_placement
    from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings

    graphs = distinct({str(file): load_graph(file) for file in options.graph}, say)
    names = variant_names(graphs)
    every = list(graphs.values())
    cluster = cluster_of(options, every[0])
    rows = peers_of(every, cluster, say)
    left = time_left(options.time_limit, began)
    settings = SolveSettings(time_limit_seconds=left, seed=options.seed)
    problems = [Problem(graph, cluster) for graph in every]
    placement, spread = None, ""
    try:
        taken, placement, _ = place_best(names, problems, "auto", "job", settings)
        spread = parallelism_words(stages(every[taken], placement))
        rows += _own_rows(every, names, taken, placement, cluster)
    except InfeasibleError as error:
        if not rows:
            raise
        say(f"{OURS} and {ALONE} are left out: {error}")
    rows.sort(key=lambda row: row.step_seconds)
    advice = advice_on(rows)
    if options.out is not None and placement is not None:
        save_placement(placement, options.out)
    bound = None
    if placement is not None:
        # Proven under `job`; other sharings may carry more beside a neighbour.
        floor = problems[0].floor
        holds = min(part_of_bound(cluster, floor, "job", name) for name in SHARINGS)
        bound = placement.least_bound_seconds * holds
    batch = every[0].notes.get("batch")
    if options.json:
        answer: AdviseAnswer = {
            "rows": [row.summary() for row in rows],
            "bound_seconds": bound,
            "advice": advice,
            "spread": spread,
        }
        print(answered(answer))
        return DONE
    tell("\n".join([*_table(rows, batch if isinstance(batch, int) else None), "", advice]))
    if spread:
        print(f"{OURS} is here {spread}")
    if bound is not None:
        print(f"no placement of these variants can be below {format_step(bound)}")
    if options.out is not None:
        print("nothing is written" if placement is None else f"written to {options.out}")
    return DONE


def _own_rows(
    graphs: Sequence[OperatorGraph],
    names: Sequence[str],
    taken: int,
    placement: Placement,
    cluster: Cluster,
) -> list[PeerStep]:
    from placewire.optimizer.engines.single import best_single
    from placewire.optimizer.explain.summary import timeline_of
    from placewire.optimizer.peers.peer import peer_step
    from placewire.optimizer.problem import Problem
    from placewire.optimizer.simulation.simulate import simulate

    ours = peer_step(OURS, names[taken], *timeline_of(graphs[taken], placement))
    alone: list[PeerStep] = []
    for name, graph in zip(names, graphs, strict=True):
        problem = Problem(graph, cluster, sharing="job")
        if (found := best_single(problem)) is not None:
            solution, _ = found
            timeline = simulate(problem, solution.device, solution.priority)
            alone.append(peer_step(ALONE, name, problem, timeline))
    return [ours, *sorted(alone, key=lambda row: row.step_seconds)[:1]]


def _table(rows: Sequence[PeerStep], batch: int | None) -> list[str]:
    cells = [["", "step", "samples/s", "memory", "NIC sends", "spent on", "how"]]
    for row in rows:
        memory, sent = format_bytes(float(row.memory_bytes)), format_bytes(row.sent_bytes)
        rate = "" if batch is None else _rate(batch, row.step_seconds)
        step = format_seconds(row.step_seconds)
        cells.append([row.name, step, rate, memory, sent, row.limit, row.words])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *numbers, limit, words in cells:
        right = "".join(f" {cell:>{w}}" for cell, w in zip(numbers, widths[1:5], strict=True))
        lines.append(_cut(f"{name:<{widths[0]}}{right}  {limit:<{widths[5]}}  {words}".rstrip()))
    return lines


def _rate(batch: int, step_seconds: float) -> str:
    if not step_seconds:
        return ""
    rate = batch / step_seconds
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def _cut(line: str) -> str:
    return line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 1]}…"


def advice_on(rows: Sequence[PeerStep]) -> str:
    """rows: the shortest step first."""
    limit = rows[0].step_seconds * (1 + _TIE)
    near = [row for row in rows if row.step_seconds <= limit]
    simple = next((row for name in _SIMPLE for row in near if row.name == name), None)
    alone = next((row for row in rows if row.name == ALONE), None)
    if simple is not None and simple.name == ALONE:
        return f"do not distribute this step: one device takes {format_step(simple.step_seconds)}"
    gain = "" if alone is None else f", {alone.step_seconds / rows[0].step_seconds:.2f} times"
    gain += "" if alone is None else " as fast as one device"
    if simple is not None:
        return f"{simple.name} is as good as anything here{gain}: take it"
    best = rows[0]
    rest = next((row for row in rows if row.name not in (best.name, ALONE)), None)
    words = f"take {best.name}: {format_step(best.step_seconds)}{gain}"
    if rest is not None:
        words += f"; {rest.name} takes {format_step(rest.step_seconds)}"
    return words
