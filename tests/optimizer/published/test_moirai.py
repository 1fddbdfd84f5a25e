"""Tests Moirai's program: figures 3 and 8, and an enumeration of placements and orders."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster, Device, Link, Nic, Server
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.formulations import (
    cp_sat,
    highs,
    moirai,
    moirai_intervals,
)
from placewire.optimizer.published.formulations.engine import solve
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.network import bottleneck_rates, full_mesh
from placewire.optimizer.published.formulations.papers import formulate
from placewire.optimizer.published.formulations.program import RowWriter
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster
from tests.optimizer.published.published_cases import SECOND, printed

EXACT = SolveSettings(gap=0.0, time_limit_seconds=600.0)
# highs and gurobi solve the paper's program with its large numbers, cp-sat (auto) its intervals.
SOLVERS = ("highs", "gurobi", "cp-sat")
MEGABYTE = 10**6


def objective(problem: Problem, settings: SolveSettings = EXACT) -> float:
    heard: list[Any] = []
    solve("moirai", problem, settings, heard.append)
    assert heard[-1].bound_seconds <= heard[-1].incumbent_seconds * (1 + 1e-6)
    return heard[-1].incumbent_seconds


# --- figure 3: channels over several hops ---------------------------------------------------------


def figure_3() -> Problem:
    """A - B at 10 MB/s, B - D at 5, D - F at 20, and C - A, D - E besides: servers that share a
    rail with their neighbours only, one rail per link."""
    links = {"AB": 10.0, "AC": 8.0, "BD": 5.0, "DE": 6.0, "DF": 20.0}
    device = (Device(type="d", memory_bytes=10**12),)
    servers = tuple(
        Server(
            name=name,
            devices=device,
            nics=tuple(
                Nic(rail=ends, rate_bits_per_second=rate * 8 * MEGABYTE)
                for ends, rate in links.items()
                if name in ends
            ),
        )
        for name in "ABCDEF"
    )
    where = Cluster(servers=servers, setup_latency_seconds=0.0, intra_server_bits_per_second=1e9)
    rows = [OperatorRow("o", "op", {"d": 1.0})]
    return Problem(build_graph(rows, []), where)


def test_figure_3_the_slowest_hop_rules():
    """A to D goes by B, at min(10, 5) MB/s: 100 MB take 20 s. A to F at min(10, 5, 20), the same;
    what has a channel of its own keeps it."""
    network = full_mesh(figure_3())
    channel = {
        ("ABCDEF"[a], "ABCDEF"[b]): k
        for k, (a, b) in enumerate(zip(network.source, network.target, strict=True))
    }
    took = {pair: 100 * MEGABYTE * 8 * network.per_bit[k] for pair, k in channel.items()}
    assert took["A", "D"] == pytest.approx(20.0)
    assert took["A", "F"] == took["F", "A"] == pytest.approx(20.0)
    assert took["A", "B"] == pytest.approx(10.0)
    assert took["C", "B"] == pytest.approx(12.5)
    assert len(took) == 30 and (network.reached == 1.0).all()


def test_a_direct_channel_is_kept_where_a_detour_would_be_wider():
    rate = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
    assert (bottleneck_rates(rate) == rate)[~np.eye(3, dtype=bool)].all()
    apart = np.array([[0.0, 4.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert bottleneck_rates(apart)[0, 2] == 0.0


def test_what_needs_a_channel_that_the_network_does_not_have_is_refused():
    """A and C can only meet through B, and servers do not forward: Moirai's mesh says 1 + 1 s, and
    the placement is refused with the two names rather than returned."""
    nics = {"A": "x", "B": "xy", "C": "y"}
    servers = tuple(
        Server(
            name=name,
            devices=(Device(type=name, memory_bytes=10**12),),
            nics=tuple(Nic(rail=r, rate_bits_per_second=8.0 * MEGABYTE) for r in rails),
        )
        for name, rails in nics.items()
    )
    where = Cluster(servers=servers, setup_latency_seconds=0.0, intra_server_bits_per_second=1e9)
    rows = [OperatorRow("p", "op", {"A": 1.0}), OperatorRow("q", "op", {"C": 1.0})]
    made = build_graph(rows, [TensorRow("p", ("q",), MEGABYTE)], device_types=["A", "B", "C"])
    problem = Problem(made, where, "even")
    assert objective(problem) == pytest.approx(3.0)
    with pytest.raises(InfeasibleError, match="A sends to C, and they have no rate"):
        place(problem, "moirai", EXACT)


# --- figure 8: the augmented graph ----------------------------------------------------------------


def test_figure_8_links_become_nodes():
    """Four operators and four links: n5 to n8 are flows, and eight links without weight join them:
    C_i <= S_q and C_q <= S_j for each."""
    edges = dict.fromkeys([("1", "2"), ("1", "3"), ("2", "4"), ("3", "4")], 1.0)
    problem = printed({str(k): (1.0, 2.0) for k in range(1, 5)}, edges)
    formulation = formulate(problem, "moirai")
    by_name = {family.equations: family for family in formulation.draft.families}
    assert by_name["(4a)"].rows == 8
    writer = RowWriter()
    by_name["(4a)"].write(writer)
    matrix, limit, _ = writer.finish(formulation.draft.columns.count)
    assert (limit == 0).all() and (matrix.sum(axis=1) == 0).all()
    # Operators 2 and 3 are the one pair without a path: 2 rows of (6) on each of 2 devices.
    assert by_name["(6)"].rows == 4
    # Flows: 1-2 with 1-3, 1-2 with 3-4, 1-3 with 2-4, 2-4 with 3-4 may meet: 4 rows on 2 devices.
    instance = Instance(problem)
    assert by_name["(8)"].rows == 4 * 4 * 2
    assert instance.reaches(0, np.arange(4)).tolist() == [True] * 4
    assert instance.reaches(np.array([1, 2]), 3).tolist() == [True, True]
    assert instance.reaches(1, 2) == np.False_


# --- against enumeration --------------------------------------------------------------------------


def least_step(problem: Problem) -> float:
    """Over every placement that fits and every order of operators and flows: each starts as early
    as what was placed before it allows, on its device, or on both ends of its channel."""
    graph, seconds = problem.graph, problem.seconds
    static = graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes
    n, devices = seconds.shape
    edges = [
        (i, j, int(graph.tensor_bytes[e]))
        for i, j, e in zip(*(column.tolist() for column in graph.edges), strict=True)
    ]
    network = full_mesh(problem)
    took = {
        (int(a), int(b)): (float(network.latency[k]), float(network.per_bit[k]))
        for k, (a, b) in enumerate(zip(network.source, network.target, strict=True))
    }
    best = np.inf
    for device in itertools.product(range(devices), repeat=n):
        used = np.bincount(device, weights=static, minlength=devices)
        if (used > problem.cluster.memory_bytes).any():
            continue
        flows = [(i, j, size) for i, j, size in edges if device[i] != device[j] and size]
        waits = [(i, j) for i, j, size in edges if device[i] == device[j] or not size]
        for order in itertools.permutations(range(n + len(flows))):
            best = min(best, _serial(order, n, device, seconds, flows, waits, took))
    return best


def _serial(order, n, device, seconds, flows, waits, took) -> float:
    finish: dict[int, float] = {}
    free = np.zeros((3, seconds.shape[1]))  # running, sending, receiving
    for item in order:
        if item < n:
            needed = [i for i, j in waits if j == item]
            needed += [n + q for q, (_, j, _) in enumerate(flows) if j == item]
            if any(k not in finish for k in needed):
                return np.inf
            d = device[item]
            at = max([free[0, d], *(finish[k] for k in needed)])
            finish[item] = free[0, d] = at + seconds[item, d]
        else:
            i, j, size = flows[item - n]
            if i not in finish:
                return np.inf
            a, b = device[i], device[j]
            at = max(free[1, a], free[2, b], finish[i])
            setup, per_bit = took[a, b]
            finish[item] = free[1, a] = free[2, b] = at + setup + size * 8 * per_bit
    return max(finish[i] for i in range(n))


def drawn(seed: int, n: int = 4, devices: int = 2, *, memory: int = 10**12) -> Problem:
    """Unlike devices, joined by links of unlike rates; costs of 1 to 9 s."""
    generator = np.random.default_rng(seed)
    kinds = [f"k{d}" for d in range(devices)]
    rows = [
        OperatorRow(f"o{i}", "op",
                    {kind: float(generator.integers(1, 10)) for kind in kinds}, weight_bytes=100)
        for i in range(n)
    ]  # fmt: skip
    tensors = [
        TensorRow(f"o{i}", (f"o{j}",), int(generator.integers(0, 4)) * SECOND)
        for j in range(1, n)
        for i in sorted(generator.choice(j, size=min(j, 2), replace=False).tolist())
    ]
    servers = tuple(
        Server(name=f"s{k}", devices=(Device(type=kind, memory_bytes=memory),), nics=())
        for k, kind in enumerate(kinds)
    )
    links = tuple(
        Link(
            source=f"s{a}/0",
            destination=f"s{b}/0",
            setup_latency_seconds=0.25,
            rate_bits_per_second=SECOND * 8.0 * float(generator.integers(1, 4)),
        )
        for a, b in itertools.permutations(range(devices), 2)
    )
    where = Cluster(
        servers=servers, setup_latency_seconds=0.0, intra_server_bits_per_second=1e9, links=links
    )
    return Problem(build_graph(rows, tensors), where)


@pytest.mark.parametrize("how", [{"seed": s} for s in range(4)] + [{"seed": 5, "memory": 200}])
def test_the_program_finds_what_enumeration_finds(how):
    problem = drawn(**how)
    best = least_step(problem)
    for solver in SOLVERS:
        found = objective(problem, replace(EXACT, options={"solver": solver}))
        assert found == pytest.approx(best, rel=1e-5), solver


@pytest.mark.parametrize("solver", SOLVERS)
def test_flows_that_leave_one_device_wait_for_each_other(solver):
    """A (1 s) feeds B and C (10 s each) by tensors of 4 s; each can run on a device of its own
    only, so both must travel: 1 + 4 + 10 and 1 + 8 + 10 s. Without (8) both would be there at 5."""
    only = [("A", 0), ("B", 1), ("C", 2)]
    seconds = {
        name: tuple((1.0 if name == "A" else 10.0) if d == k else np.inf for d in range(3))
        for name, k in only
    }
    problem = printed(seconds, {("A", "B"): 4.0, ("A", "C"): 4.0})
    settings = replace(EXACT, options={"solver": solver})
    assert objective(problem, settings) == pytest.approx(19.0)
    # And of two that reach one device: B and C (1 s) both feed D on a third.
    seconds = {
        "B": (1.0, np.inf, np.inf), "C": (np.inf, 1.0, np.inf), "D": (np.inf, np.inf, 2.0),
    }  # fmt: skip
    problem = printed(seconds, {("B", "D"): 4.0, ("C", "D"): 4.0})
    assert objective(problem, settings) == pytest.approx(1.0 + 8.0 + 2.0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_two_tensors_between_two_operators_are_one_flow_of_both(solver):
    """A and B run on a device of their own only, and A sends B 1 and 3 s of data, which pay the
    channel's 0.25 s once. C sends B 2 s, which waits for them or they for it."""
    rows = [
        OperatorRow("A", "op", {"x": 1.0}),
        OperatorRow("C", "op", {"x": 0.0}),
        OperatorRow("B", "op", {"y": 2.0}),
    ]
    tensors = [TensorRow("A", ("B",), size * SECOND) for size in (1, 3)]
    tensors.append(TensorRow("C", ("B",), 2 * SECOND))
    servers = tuple(
        Server(name=f"s{k}", devices=(Device(type=kind, memory_bytes=10**12),), nics=())
        for k, kind in enumerate("xy")
    )
    link = Link(
        source="s0/0", destination="s1/0", setup_latency_seconds=0.25,
        rate_bits_per_second=SECOND * 8.0,
    )  # fmt: skip
    where = Cluster(
        servers=servers, setup_latency_seconds=0.0, intra_server_bits_per_second=1e9, links=(link,)
    )
    problem = Problem(build_graph(rows, tensors), where)
    found = objective(problem, replace(EXACT, options={"solver": solver}))
    # C's flow begins at once and ends at 2.25, A's then takes 4.25.
    assert found == pytest.approx(2.25 + 4.25 + 2.0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_order_is_decided_and_kept(solver):
    """One device, two chains: a long successor behind the second operator. The recorded sort runs a
    first; the program's order, b first, is what the placement has."""
    seconds = {"a": (2.0, np.inf), "b": (2.0, np.inf), "c": (np.inf, 9.0)}
    problem = printed(seconds, {("b", "c"): 1.0})
    solution = solve("moirai", problem, replace(EXACT, options={"solver": solver}))
    ids = problem.graph.ids
    priority = dict(zip(ids, solution.priority.tolist(), strict=True))
    assert priority["b"] > priority["a"]
    timeline = simulate(problem, solution.device, solution.priority, rates=np.zeros((1, 1, 0)))
    assert timeline.step_seconds == pytest.approx(12.0)


@pytest.mark.parametrize("seed", [11, 12, 13])
@pytest.mark.parametrize("over", ["highs", "cp-sat"])
def test_operators_of_one_device_never_overlap(seed, over):
    """A property of every answer, by the solver's own starts."""
    problem = drawn(seed, 6, 3)
    formulation = formulate(problem, "moirai")
    if over == "highs":
        answer = highs.solve(formulation.draft.build(), 20.0, 0.05)
    else:
        answer = moirai_intervals.solve(formulation, (), 20.0, 0.05)
    values = answer.values
    assert values is not None
    device = values[formulation.x].argmax(axis=1)
    start = values[formulation.start] * formulation.horizon_seconds
    finish = start + problem.seconds[np.arange(6), device]
    for i, j in itertools.combinations(range(6), 2):
        if device[i] == device[j]:
            assert finish[i] <= start[j] + 1e-4 or finish[j] <= start[i] + 1e-4
    assert answer.bound <= answer.objective * (1 + 1e-6)


def test_a_group_shares_its_device_over_every_solver():
    """Two operators of 5 s that would run side by side, but for their key."""
    rows = [OperatorRow(f"o{k}", "op", {"cpu": 5.0}, colocation="k") for k in range(2)]
    problem = Problem(build_graph(rows, []), cluster(2))
    for solver in SOLVERS:
        assert objective(problem, replace(EXACT, options={"solver": solver})) == pytest.approx(
            10.0
        ), solver


def test_a_graph_beyond_the_memory_is_infeasible_over_every_solver():
    for solver in SOLVERS:
        with pytest.raises(InfeasibleError, match="static sum"):
            solve("moirai", drawn(1, memory=150), replace(EXACT, options={"solver": solver}))


def test_placed_through_the_registry_the_answer_holds():
    problem = Problem(
        drawn(3).graph.with_seconds({"cpu": np.array([1.0, 2.0, 3.0, 4.0])}),
        cluster(3, (BYTE_PER_MICROSECOND,) * 2),
    )
    placement = place(problem, "moirai", replace(EXACT, gap=0.01))
    assert check(problem.graph, placement) == ()
    assert placement.engine == "moirai"


def test_more_than_a_solver_takes_is_refused_with_its_size(monkeypatch):
    """300 flows, all of which may meet: 300 x 299 / 2 pairs, 4 rows on each of 4 devices; and 600
    operators, nearly all without a path between them."""
    rows = [OperatorRow(f"o{k}", "op", {"cpu": 1e-3}) for k in range(600)]
    tensors = [TensorRow(f"o{k}", (f"o{k + 300}",), 1000) for k in range(300)]
    problem = Problem(build_graph(rows, tensors), cluster(4))
    families = {f.equations: f.rows for f in formulate(problem, "moirai").draft.families}
    assert families["(8)"] == 717_600
    assert families["(6)"] == (600 * 599 // 2 - 300) * 8
    with pytest.raises(FormulationTooLargeError, match=r"1,435,200 of \(6\)"):
        place(problem, "moirai", replace(EXACT, options={"solver": "highs"}))
    monkeypatch.setattr(moirai, "_MOST_PAIRS", 44_000)  # 300 x 299 / 2 is 44,850
    with pytest.raises(FormulationTooLargeError, match="more than 44,000 pairs of data flows"):
        place(problem, "moirai", replace(EXACT, options={"solver": "highs"}))
    monkeypatch.setattr(cp_sat, "_MOST_PARTS", 4_000)
    with pytest.raises(FormulationTooLargeError, match="24,000 intervals"):
        place(problem, "moirai", EXACT)
