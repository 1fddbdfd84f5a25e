"""Item 5: which sharing wins with equal NICs on every server, quiet and beside a neighbour."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.engine.measured import Ask, solve
from benchmarks.engine.setting import captured_file, cluster
from benchmarks.table import Table
from placewire.optimizer.explain.summary import timeline_of
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement

GRAPH = "vgg16"
GIGABITS = (1.0, 10.0, 20.0, 100.0, 160.0)
SERVERS = (4, 8)
NEIGHBOURS = (("quiet", 0.0), ("half", 0.5), ("greedy", 1.0))
NICS = 3
SECONDS = 15.0
SHARINGS: tuple[SharingName, ...] = ("job", "guarantee", "strict", "even", "unshaped")
HEADINGS = (*SHARINGS, "one NIC", "one device")


def tables(_: Path | None) -> Iterator[Table]:
    file = captured_file(GRAPH)
    graph = load_graph(file)
    rows, shares, ratios = [], [], []
    for servers, gigabits, (neighbour, wanted) in itertools.product(SERVERS, GIGABITS, NEIGHBOURS):
        found = _found(file, servers, gigabits, wanted)
        steps = [placement.step_seconds for placement in found]
        best, name = min(steps), f"{servers} x {gigabits:g}, {neighbour}"
        ratios.append([step / best for step in steps])
        rows.append([name, f"{best * 1e3:.4g}", *(f"{step / best:.3f}" for step in steps)])
        if wanted:
            parts = [neighbour_share(graph, placement) for placement in found]
            shares.append([name, *(f"{part:.0%}" for part in parts)])
    wins = (np.array(ratios) <= 1.01).sum(axis=0).tolist()
    worst = np.max(ratios, axis=0).tolist()
    said = [f"{h} {w} (worst {x:.2f})" for h, w, x in zip(HEADINGS, wins, worst, strict=True)]
    yield Table(
        title=f"5. Which sharing wins: {GRAPH}, {NICS} NICs a server, each its own best placement",
        columns=("servers x Gbit/s, neighbour", "best ms", *HEADINGS),
        rows=rows,
        notes=(
            f"Step over the best of the row; contended, seed 0, {SECONDS:g} s for five sharings "
            f"together. Best or within 1 % of it, in {len(rows)} rows: {', '.join(said)}.",
        ),
    )
    yield Table(
        title="5. What the neighbour on the first server got of what it wanted",
        columns=("servers x Gbit/s, neighbour", *HEADINGS),
        rows=shares,
        notes=("Both directions, averaged over the step, on the NICs that the job uses.",),
    )


def _found(file: Path, servers: int, gigabits: float, wanted: float) -> list[Placement]:
    """The placements in the order of HEADINGS."""
    three = cluster(gigabits, servers=servers, nics=NICS, background=wanted)
    one = cluster(gigabits, servers=servers, nics=1, background=wanted)
    shared = solve(Ask(file, three, "auto", "auto", time_limit=SECONDS))
    alone = Ask(file, one, "auto", "unshaped", time_limit=SECONDS / len(SHARINGS))
    single = solve(Ask(file, three, "single", "strict"))
    found = [shared.placement_under(sharing) for sharing in SHARINGS]
    return [*found, solve(alone).placement, single.placement]


def neighbour_share(graph: OperatorGraph, placement: Placement) -> float:
    """The part that the neighbour carried of what it wanted in the step, in both directions."""
    _, timeline = timeline_of(graph, placement)
    wanted = 2 * placement.cluster.background.sum() * timeline.step_seconds
    return float(timeline.background_bits.sum() / wanted)
