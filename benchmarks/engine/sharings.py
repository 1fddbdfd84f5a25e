"""Item 5: which sharing wins, at equal NICs per server, quiet and with a neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.engine.measured import Ask, solve
from benchmarks.engine.setting import captured_file, cluster, graph_of
from benchmarks.table import Table
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate

GRAPH = "vgg16"
GIGABITS = (1.0, 10.0, 20.0, 100.0, 160.0)
SERVERS = (4, 8)
NEIGHBOURS = (("quiet", 0.0), ("half", 0.5), ("greedy", 1.0))
NICS = 3
SECONDS = 15.0
SHARINGS: tuple[SharingName, ...] = ("job", "guarantee", "strict", "even", "unshaped")
HEADINGS = (*SHARINGS, "one NIC", "one device")


def tables() -> tuple[Table, Table]:
    """(step over the best of each row, the neighbour's part of what it wanted)"""
    file = captured_file(GRAPH)
    graph = graph_of(file)
    rows, shares, ratios = [], [], []
    for servers, gigabits, (neighbour, wanted) in _settings():
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
    first = Table(
        title=f"5a. Which sharing wins: {GRAPH}, {NICS} NICs a server, each its own best placement",
        columns=("servers x Gbit/s, neighbour", "best ms", *HEADINGS),
        rows=rows,
        notes=(
            f"Step over the best of the row; contended, seed 0, {SECONDS:g} s for five sharings "
            f"together. Best or within 1 % of it, in {len(rows)} rows: {', '.join(said)}.",
        ),
    )
    second = Table(
        title="5b. What the neighbour on the first server got of what it wanted",
        columns=("servers x Gbit/s, neighbour", *HEADINGS),
        rows=shares,
        notes=("Both directions, averaged over the step, on the NICs that the job uses.",),
    )
    return first, second


def _found(file: Path, servers: int, gigabits: float, wanted: float) -> list[Placement]:
    """In the order of HEADINGS."""
    three = cluster(gigabits, servers=servers, nics=NICS, background=wanted)
    one = cluster(gigabits, servers=servers, nics=1, background=wanted)
    shared = solve(Ask(file, three, "auto", "auto", time_limit=SECONDS))
    alone = Ask(file, one, "auto", "unshaped", time_limit=SECONDS / len(SHARINGS))
    single = solve(Ask(file, three, "single", "strict"))
    found = [shared.placement_under(sharing) for sharing in SHARINGS]
    return [*found, solve(alone).placement, single.placement]


def _settings() -> Iterator[tuple[int, float, tuple[str, float]]]:
    for servers in SERVERS:
        for gigabits in GIGABITS:
            for neighbour in NEIGHBOURS:
                yield servers, gigabits, neighbour


def neighbour_share(graph: OperatorGraph, placement: Placement) -> float:
    """What the neighbour carried of what it wanted, both directions, over the whole step."""
    on = placement.cluster
    problem = Problem(graph, on, placement.sharing)
    index = {name: d for d, name in enumerate(on.device_names)}
    device = np.array([index[placement.operators[name]] for name in graph.ids], dtype=np.int64)
    order = [[graph.index_of[n] for n in placement.order.get(d, ())] for d in on.device_names]
    timeline = simulate(problem, device, order=order, rates=placement.rates)
    wanted = 2 * on.background.sum() * timeline.step_seconds
    return float(timeline.background_bits.sum() / wanted)
