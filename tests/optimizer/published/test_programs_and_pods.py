"""Tests that the bandwidths which P2 and P3 decide fit into the uplinks of pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.formulations.engine import solve
from placewire.optimizer.published.formulations.errors import FormulationRefusedError
from placewire.optimizer.published.formulations.known_start import best_start
from placewire.optimizer.published.formulations.network import decided_network
from placewire.optimizer.published.formulations.papers import PaperName, formulate
from placewire.optimizer.published.formulations.whole_numbers import (
    LIMIT_PARTS,
    RATE_PARTS,
    WholeNumbers,
)
from placewire.optimizer.rates.allocator import allocate
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, podded

EXACT = SolveSettings(gap=0.0, time_limit_seconds=600.0)
MEGABYTE = 10**6
PROGRAMS: tuple[PaperName, ...] = ("thesis-p2", "thesis-p3")
SOLVERS = ("highs", "gurobi", "cp-sat")


def sends(where: Cluster, sent: Sequence[tuple[int, int, int]]) -> Problem:
    """For each (source, destination, MB) an operator of 1 s on the first server, and its reader of
    2 s on the second, neither of which runs elsewhere."""
    kinds = [f"d{k}" for k in range(len(where.servers))]
    servers = tuple(
        server.model_copy(
            update={"devices": (server.devices[0].model_copy(update={"type": kind}),)}
        )
        for server, kind in zip(where.servers, kinds, strict=True)
    )
    rows, tensors = [], []
    for k, (source, destination, size) in enumerate(sent):
        rows += [
            OperatorRow(f"p{k}", "op", {kinds[source]: 1.0}),
            OperatorRow(f"c{k}", "op", {kinds[destination]: 2.0}),
        ]
        tensors.append(TensorRow(f"p{k}", (f"c{k}",), size * MEGABYTE))
    graph = build_graph(rows, tensors, device_types=kinds)
    return Problem(graph, where.model_copy(update={"servers": servers}), "strict")


@pytest.mark.parametrize("model", ["contended", "thesis"])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_objective_is_attained_where_two_senders_share_an_uplink(name, solver, model):
    """s1 sends s3 4 MB and s2 sends s4 2 MB, over an uplink of 1 MB/s on each of two rails. NICs
    carry 4 MB/s each: without the uplink both arrive in half a second."""
    problem = replace(sends(podded(1.0, nics=(4.0, 4.0)), [(0, 2, 4), (1, 3, 2)]), model=model)
    heard: list[Any] = []
    solution = solve(name, problem, replace(EXACT, options={"solver": solver}), heard.append)
    own = heard[-1].incumbent_seconds
    assert own == pytest.approx(1.0 + 6.0 / 2.0 + 2.0, rel=2e-3)
    rates = solution.rates
    assert rates is not None
    assert rates[:2, 2:].sum(axis=(0, 1)) == pytest.approx([8e6, 8e6], rel=2e-3)
    assert rates[0, 2].sum() == pytest.approx(2 * rates[1, 3].sum(), rel=2e-3)
    assert problem.limits.room(rates).min() >= 1 - 1e-9
    found = simulate(problem, solution.device, solution.priority, None, rates)
    assert found.step_seconds == pytest.approx(own, rel=1e-5)
    best = allocate(problem, solution.device, found.order)
    allocated = simulate(problem, solution.device, order=found.order, rates=best).step_seconds
    assert found.step_seconds <= allocated * (1 + 2e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_uplink_limits_what_enters_a_pod_too(solver):
    """Three pods: s1 and s2 send s3 and s4 as much, each over an uplink of its own of 2 MB/s, into
    one of 2 MB/s."""
    pods = {"p1": ("s1",), "p2": ("s2",), "p3": ("s3", "s4")}
    problem = sends(podded(2.0, nics=(4.0,), pods=pods), [(0, 2, 3), (1, 3, 3)])
    heard: list[Any] = []
    solution = solve("thesis-p2", problem, replace(EXACT, options={"solver": solver}), heard.append)
    assert heard[-1].incumbent_seconds == pytest.approx(1.0 + 3.0 + 2.0, rel=2e-3)
    found = simulate(problem, solution.device, solution.priority, None, solution.rates)
    assert found.step_seconds == pytest.approx(heard[-1].incumbent_seconds, rel=1e-5)


def test_a_pair_within_a_pod_knows_no_uplink():
    network = decided_network(sends(podded(1.0, nics=(4.0, 4.0)), [(0, 1, 1)]))
    widest = {
        (int(s), int(t)): rate / BYTE_PER_MICROSECOND
        for (s, t), rate in zip(network.server_pairs, network.widest, strict=True)
    }
    assert widest[0, 1] == widest[3, 2] == pytest.approx(8.0)
    assert widest[0, 2] == widest[3, 1] == pytest.approx(2.0)


def test_the_answer_holds_without_any_repair():
    problem = sends(podded(0.5, nics=(4.0,)), [(0, 2, 4), (1, 3, 2), (0, 1, 1)])
    placement = place(problem, "thesis-p2", replace(EXACT, gap=0.01))
    assert check(problem.graph, placement) == ()


@pytest.mark.parametrize("uplink", [4.0, 1e-3])
def test_the_start_keeps_every_limit_in_whole_numbers(uplink):
    """Also of an uplink that is four thousand times as narrow as a NIC."""
    problem = sends(podded(uplink, nics=(4.0, 1.0)), [(0, 2, 4), (0, 1, 1), (1, 3, 2), (3, 1, 2)])
    formulation = formulate(problem, "thesis-p2", with_rows=False)
    device = np.array([0, 2, 0, 1, 1, 3, 3, 1])
    begun = best_start(formulation, [device])
    assert begun is not None
    whole = WholeNumbers(formulation)
    assert (begun.parts >= whole.least_parts).all() and (begun.parts <= RATE_PARTS).all()
    full = 0.0
    for pairs, taken in whole.shared:
        used = int((begun.parts[pairs] * taken).sum()) / (LIMIT_PARTS * RATE_PARTS)
        assert used <= 1.0
        full = max(full, used)
    assert full > 0.999
    heard: list[Any] = []
    settings = replace(EXACT, options={"solver": "cp-sat"})
    solve("thesis-p2", problem, settings, heard.append)
    highs: list[Any] = []
    solve("thesis-p2", problem, EXACT, highs.append)
    rounding = whole.rate_rounding + whole.time_rounding + 2e-6
    assert heard[-1].incumbent_seconds == pytest.approx(highs[-1].incumbent_seconds, rel=rounding)


def test_a_pod_without_an_uplink_on_some_rail_is_refused():
    where = podded(1.0, nics=(4.0, 4.0))
    first = where.pods[0]
    pods = (first.model_copy(update={"uplinks": first.uplinks[:1]}), *where.pods[1:])
    problem = sends(where.model_copy(update={"pods": pods}), [(0, 2, 1)])
    with pytest.raises(FormulationRefusedError, match="pod p1 has no uplink on rail b"):
        solve("thesis-p2", problem, EXACT)
    # One pod needs no uplink.
    alone = where.pods[0].model_copy(
        update={"servers": tuple(server.name for server in where.servers), "uplinks": ()}
    )
    problem = sends(where.model_copy(update={"pods": (alone,)}), [(0, 2, 8)])
    heard: list[Any] = []
    solve("thesis-p2", problem, EXACT, heard.append)
    assert heard[-1].incumbent_seconds == pytest.approx(1.0 + 1.0 + 2.0)
