"""Worked examples of the thesis that are no reduction's: its figures 3.1 and 3.2.

Figure 3.2's queues, addresses and flows are in tests/controller/compile/test_thesis_figure_3_2.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.formulations.engine import solve
from placewire.optimizer.published.formulations.network import decided_network
from placewire.optimizer.published.formulations.papers import PaperName
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import cluster, full_rates, graph

FIVE_SECONDS = 5_000_000  # bytes, between two servers of `cluster()`
# Its microseconds as seconds: A 5, B 10, C 5, and 5 between devices.
FIGURE_3_1 = Problem(
    graph(
        {"A": 5.0, "B": 10.0, "C": 5.0},
        [("A", ["B"], FIVE_SECONDS), ("A", ["C"], FIVE_SECONDS)],
    ),
    cluster(2),
    model="thesis",
)


def test_figure_3_1_the_parallel_pair_on_two_devices_is_the_optimum():
    steps = {}
    for device in itertools.product((0, 1), repeat=3):
        for first in ("BC", "CB"):
            priority = np.array([2.0, float(first == "BC"), float(first == "CB")])
            timeline = simulate(
                FIGURE_3_1, np.array(device), priority, None, full_rates(FIGURE_3_1)
            )
            steps[device, first] = timeline.step_seconds
    assert steps[(0, 0, 0), "BC"] == 20.0
    assert steps[(0, 0, 1), "BC"] == 15.0, "the middle configuration"
    assert steps[(0, 1, 0), "BC"] == 20.0
    best = [device for (device, _), step in steps.items() if step == min(steps.values())]
    assert min(steps.values()) == 15.0
    assert set(best) == {(0, 0, 1), (1, 1, 0)}


@pytest.mark.parametrize("engine", ["auto", "thesis-p1", "thesis-p2"])
def test_figure_3_1_engines_find_it(engine):
    # `auto` may take all of its time; a program ends when it is solved.
    limit = 10.0 if engine == "auto" else 600.0
    found = place(FIGURE_3_1, engine, SolveSettings(gap=0.0, time_limit_seconds=limit))
    assert found.step_seconds == pytest.approx(15.0, rel=1e-4)
    assert found.operators["A"] == found.operators["B"] != found.operators["C"]


# --- figure 3.2: servers with several links -------------------------------------------------------

LINK = 20e9


def figure_3_2(servers: int, nics: int, sent: dict[str, int]) -> Problem:
    """Operator a (1 s) on server A, and a reader of 10 s for each tensor (bytes) on a server of its
    own: each of them is slow on every device but its own."""
    homes = {"a": 0} | {reader: k + 1 for k, reader in enumerate(sent)}
    costs = {"a": 1.0} | dict.fromkeys(sent, 10.0)
    kinds = [f"d{k}" for k in range(servers)]
    rows = [
        OperatorRow(name, "op", {kind: costs[name] if k == homes[name] else 1e4
                                 for k, kind in enumerate(kinds)})
        for name in costs
    ]  # fmt: skip
    tensors = [TensorRow("a", (reader,), size) for reader, size in sent.items()]
    where = cluster(servers, (LINK,) * nics, types=kinds)
    return Problem(build_graph(rows, tensors), where, "strict", "thesis")


@pytest.mark.parametrize("solver", ["highs", "gurobi", "cp-sat"])
def test_figure_3_2_a_a_pair_may_have_all_links_of_its_servers(solver):
    """Six servers with a link of 20 Gbit/s to each of three switches: B = bd = 60 Gbit/s. What P1
    sends over one link in 9 s, P2 sends over three disjoint paths in 3 s."""
    size = int(9 * LINK / 8)
    problem = figure_3_2(6, 3, {"b": size})
    network = decided_network(problem)
    assert len(network.server_pairs) == 6 * 5
    assert network.widest.tolist() == [3 * LINK] * 30
    steps, said = {}, {}
    programs: tuple[PaperName, ...] = ("thesis-p1", "thesis-p2")
    for name in programs:
        settings = SolveSettings(gap=0.0, time_limit_seconds=600.0, options={"solver": solver})
        heard: list[Any] = []
        solution = solve(name, problem, settings, heard.append)
        said[name] = heard[-1].incumbent_seconds
        rates = solution.rates
        if rates is None:
            rates = np.zeros((6, 6, 3))
            rates[:, :, 0] = LINK
        steps[name] = simulate(problem, solution.device, None, None, rates).step_seconds
    for found in (said, steps):  # what the program says, and what the simulator does
        assert found["thesis-p1"] == pytest.approx(1.0 + 9.0 + 10.0, rel=1e-4)
        assert found["thesis-p2"] == pytest.approx(1.0 + 3.0 + 10.0, rel=1e-3)


@pytest.mark.parametrize("solver", ["highs", "gurobi", "cp-sat"])
@pytest.mark.parametrize("name", ["thesis-p2", "thesis-p3"])
def test_figure_3_2_b_and_d_bandwidth_is_uneven_as_the_traffic_is(name, solver):
    """A has two links of 20 Gbit/s. It sends B twice what it sends C and D: 20, 10 and 10 Gbit/s
    are optimal, the figure's own numbers, where an even share would be 13.3 each."""
    piece = int(3 * LINK / 2 / 8)  # 3 s at 10 Gbit/s
    problem = figure_3_2(4, 2, {"b": 2 * piece, "c": piece, "d": piece})
    settings = SolveSettings(gap=0.0, time_limit_seconds=600.0, options={"solver": solver})
    solution = solve(name, problem, settings)
    assert solution.rates is not None
    from_a = solution.rates.sum(axis=2)[0] / 1e9
    assert from_a[1:] == pytest.approx([20.0, 10.0, 10.0], rel=2e-3)
    timeline = simulate(problem, solution.device, None, None, solution.rates)
    assert timeline.step_seconds == pytest.approx(1.0 + 3.0 + 10.0, rel=1e-3)
    assert problem.limits.room(solution.rates).min() >= 1 - 1e-9
