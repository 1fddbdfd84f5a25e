"""Starts that put whole parts of a step, such as micro-batches, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.engines import auto
from placewire.optimizer.engines.costing import Costing
from placewire.optimizer.engines.parallel import INPUT, parallel_starts, parts_of
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.units import unit_able, unit_of_operator
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.problem import Problem, SolveSettings
from tests.optimizer.problems import problems

WEIGHT = 1_000_000


def accumulated(parts: int, weights: int = 4, shared: bool = True) -> OperatorGraph:
    """Micro-batches of a chain of layers, whose gradients are added before the updates. shared: all
    of them also read one small value that needs nothing, as positions do."""
    rows: list[OperatorRow] = []
    tensors: list[TensorRow] = []

    def operator(name: str, kind: str, millis: float, weight: int = 0, on: str = "") -> str:
        rows.append(
            OperatorRow(
                name, kind, {"cpu": millis / 1e3, "fast": millis / 3e3},
                weight_bytes=weight, colocation=on or None,
            )
        )  # fmt: skip
        return name

    def sends(producer: str, consumers: Sequence[str], size: int) -> None:
        tensors.append(TensorRow(producer, tuple(consumers), size))

    w = [operator(f"w{k}", "parameter", 0, WEIGHT, f"w{k}") for k in range(weights)]
    positions = operator("positions", "arange", 0.01) if shared else ""
    added: list[str] = [""] * weights
    readers: dict[str, list[str]] = {name: [] for name in (*w, positions)}
    for m in range(parts):
        below, target = operator(f"x_m{m}", "input", 0), operator(f"t_m{m}", "input", 0)
        forward = []
        for k in range(weights):
            forward.append(operator(f"f{k}_m{m}", "mm", 5))
            readers[w[k]].append(forward[-1])
            sends(below, [forward[-1]], 1000)
            below = forward[-1]
        if positions:
            readers[positions].append(forward[0])
        loss = operator(f"loss_m{m}", "loss", 1)
        sends(below, [loss], 1000)
        sends(target, [loss], 1000)
        above = loss
        for k in reversed(range(weights)):
            gradient = operator(f"b{k}_m{m}", "mm", 10)
            sends(above, [gradient], 1000)
            above = gradient
            if m:
                total = operator(f"sum{k}_m{m}", "add", 0.1)
                sends(added[k], [total], WEIGHT)
                sends(gradient, [total], WEIGHT)
                gradient = total
            added[k] = gradient
    for k in range(weights):
        sends(added[k], [operator(f"update{k}", "update", 1, 0, f"w{k}")], WEIGHT)
        sends(w[k], readers[w[k]], WEIGHT)
    if positions:
        sends(positions, readers[positions], 8)
    return build_graph(rows, tensors, device_types=("cpu", "fast"))


def servers(*kinds: str, gigabits: Sequence[float] = ()) -> Cluster:
    rates = gigabits or [1.0] * len(kinds)
    return Cluster(
        servers=tuple(
            Server(
                name=f"s{k + 1}",
                devices=(Device(type=kind, memory_bytes=1 << 33),),
                nics=(Nic(rail="a", rate_bits_per_second=rate * 1e9),),
            )
            for k, (kind, rate) in enumerate(zip(kinds, rates, strict=True))
        ),
        setup_latency_seconds=1e-5,
        intra_server_bits_per_second=1e10,
    )


def part_by_name(graph: OperatorGraph) -> dict[str, int]:
    part = parts_of(graph, graph.seconds[:, 0])
    return dict(zip(graph.ids, part.tolist(), strict=True))


def test_micro_batches_are_parts_and_weights_with_their_sums_are_shared() -> None:
    part = part_by_name(accumulated(3))
    for name, number in part.items():
        own = "_m" in name and not name.startswith("sum")
        assert number == (int(name.partition("_m")[2]) if own else -1), name


def test_one_micro_batch_is_one_part() -> None:
    assert set(part_by_name(accumulated(1)).values()) == {0, -1}


def test_a_graph_without_inputs_has_no_parts() -> None:
    graph = build_graph([OperatorRow("a", "mm", {"cpu": 1.0})], [])
    assert parts_of(graph, graph.seconds[:, 0]).tolist() == [-1]


def test_a_captured_step_has_as_many_parts_as_micro_batches() -> None:
    model = "placewire.examples.models.transformer:training_step_small"
    captured = capture(model, 8, OptimizerChoice(), 0, accumulate=4)
    graph = captured.operators
    part = parts_of(graph, np.ones(graph.operator_count))
    names = np.array(graph.ids)
    assert int(part.max()) == 3
    for m in range(4):
        inside = names[part == m]
        assert len(inside) == (part == 0).sum() and all(n.endswith(f"_m{m}") for n in inside)
    assert not any(part[np.array(graph.types) == "update"] >= 0)


def test_each_part_is_whole_and_weights_are_spread_by_the_rates_of_nics() -> None:
    graph = accumulated(4, weights=9)
    problem = Problem(graph, servers(*["cpu"] * 3, gigabits=(1.0, 1.0, 4.0)))
    start = list(parallel_starts(problem))[-1]
    part = parts_of(graph, graph.seconds[:, 0])
    homes = [set(start.device[part == m].tolist()) for m in range(4)]
    assert all(len(home) == 1 for home in homes) and set().union(*homes) == {0, 1, 2}
    weights = [int(start.device[graph.index_of[f"w{k}"]]) for k in range(9)]
    assert [weights.count(d) for d in range(3)] == [1, 1, 7]
    for k in range(9):
        last = start.device[[graph.index_of[name] for name in (f"update{k}", f"sum{k}_m3")]]
        assert set(last.tolist()) == {weights[k]}


def test_a_device_that_is_three_times_as_fast_gets_three_times_as_many() -> None:
    graph = accumulated(8)
    problem = Problem(graph, servers("cpu", "fast"))
    (start,) = parallel_starts(problem)
    part = parts_of(graph, graph.seconds[:, 0])
    on_fast = sum(int(start.device[part == m][0]) == 1 for m in range(8))
    assert on_fast == 6


def test_the_search_is_never_worse_than_whole_micro_batches_side_by_side() -> None:
    problem = Problem(accumulated(4), servers(*["cpu"] * 4), sharing="even")
    costing = Costing(problem)
    best = min(costing.cost(start).cost for start in parallel_starts(problem))
    assert best < costing.reference / 2
    found = auto.solve(problem, SolveSettings(moves=200, seed=1))
    assert costing.cost(found).cost <= best * (1 + 1e-9)


def test_one_operator_that_a_fast_device_cannot_run_keeps_no_part_from_it() -> None:
    graph = accumulated(8)
    seconds = graph.seconds.copy()
    losses = np.array([kind == "loss" for kind in graph.types])
    seconds[losses, 1] = np.inf
    graph = graph.with_seconds({"cpu": seconds[:, 0], "fast": seconds[:, 1]})
    problem = Problem(graph, servers("cpu", "fast", "fast"))
    start = list(parallel_starts(problem))[-1]
    products = np.array([kind == "mm" for kind in graph.types])
    assert (start.device[products] > 0).mean() > 0.5
    assert set(start.device[losses].tolist()) == {0}


@st.composite
def with_inputs(draw: st.DrawFn) -> Problem:
    """Some operators that need nothing are inputs of the step."""
    problem = draw(problems())
    graph = problem.graph
    start, _ = graph.inputs
    types = [
        INPUT if start[i] == start[i + 1] and graph.colocation[i] < 0 and draw(st.booleans()) else t
        for i, t in enumerate(graph.types)
    ]
    return replace(problem, graph=replace(graph, types=tuple(types)))


def test_starts_are_placements_that_keep_groups_together() -> None:
    seen = [0]

    @settings(max_examples=150, deadline=None)
    @given(with_inputs())
    def kept_together(problem: Problem) -> None:
        unit, starts = unit_of_operator(problem), list(parallel_starts(problem))
        seen[0] += len(starts)
        for start in starts:
            require_placement(problem, unit, start)

    kept_together()
    assert seen[0] > 5, "else nothing was looked at"


def require_placement(problem: Problem, unit: IntArray, start: Solution) -> None:
    able = unit_able(problem, unit)
    assert set(start.device.tolist()) <= set(range(len(problem.cluster.devices)))
    for u in set(unit.tolist()):
        (device,) = set(start.device[unit == u].tolist())
        assert able[u, device] or not able[u].any()
