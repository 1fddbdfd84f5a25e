"""Simulating a move in part, where devices keep to the recorded sort, gives the whole step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewire.optimizer.engines.annealing_chain import Walker
from placewire.optimizer.engines.costing import Costing
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.kernels.annealing.anneal_turns import (
    channels_at,
    keep_turns,
    last_readers,
    new_turns,
    run_turns,
)
from placewire.optimizer.kernels.simulation.contention_free import contention_free
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import starting_rates
from tests.optimizer.cases import clusters, devices_of, layered
from tests.optimizer.peers.steps import captured, gpus


def whole(problem: Problem, device: np.ndarray, rates: np.ndarray) -> tuple[float, np.ndarray]:
    tables, n = tables_of(problem), len(device)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(len(tables.producer))
    position = np.empty(n, dtype=np.int64)
    return contention_free(tables, device, rates, start, finish, sent, position), finish


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_move_simulated_in_part_equals_a_whole_simulation(data):
    made = layered(12, 2, seed=data.draw(st.integers(0, 1000)))
    problem = Problem(made, data.draw(clusters()), "even", "thesis")
    tables, rates = tables_of(problem), problem.rates_in_force(None)
    device = data.draw(devices_of(problem))
    n, devices = len(device), len(tables.server)
    channels, (place, last) = channels_at(tables, rates), last_readers(tables)
    old, new, free = new_turns(n, devices), new_turns(n, devices), np.zeros(n)
    network = tables, channels, place, last, free
    _, until = run_turns(*network, device, old, new, 0, n, np.inf)
    keep_turns(tables, old, new, 0, until)
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for _ in range(20):
        moved = device.copy()
        some = chance.integers(n, size=chance.integers(1, 4))
        moved[some] = chance.integers(devices, size=len(some))
        begin = int(place[some].min()) // 32
        concerned = int(max(place[some].max(), last[some].max()))
        expected, finish = whole(problem, moved, rates)
        step, until = run_turns(*network, moved, old, new, begin, concerned, np.inf)
        assert step == expected
        limit = expected * (1 - 1e-9)
        assert run_turns(*network, moved, old, new, begin, concerned, limit)[0] > limit
        if chance.random() < 0.6:
            _, until = run_turns(*network, moved, old, new, begin, concerned, np.inf)
            keep_turns(tables, old, new, begin, until)
            device = moved
            assert (old.finish == finish).all()
            in_sort = finish[tables.topological]
            for k in range(len(old.before)):
                assert old.before[k] == in_sort[: 32 * k].max(initial=0.0)
                assert old.after[k] == in_sort[32 * k :].max(initial=0.0)


@pytest.mark.parametrize("tight", [False, True])
def test_annealing_in_turns_finds_what_it_says(tight):
    problem = Problem(captured("mlp", 1, decompose=True), gpus(4), "strict", "thesis")
    problem = replace(problem, graph=replace(problem.graph, seconds=problem.graph.seconds * 100))
    if tight:
        held = problem.graph.weight_bytes + problem.graph.activation_bytes
        held = held + problem.graph.workspace_bytes
        problem = replace(problem, cluster=gpus(4, memory=int(0.6 * held.sum())))
    walker = Walker(problem)
    assert walker.takes_turns
    n = problem.graph.operator_count
    alternating = np.arange(n) % 4
    chain = walker.chain(Solution(alternating[walker.neighbourhood.unit], np.zeros(n), None))
    begun = walker.costing.cost(Solution(chain.device, chain.priority, None))
    rates = walker.held_rates(chain)
    step = begun.cost
    found = walker.walk(chain, 4_000, 0.1 * step, 1e-4 * step, 7, hold=True)
    again = Costing(problem).cost(found.solution, rates)
    assert found.cost == pytest.approx(again.cost, rel=1e-9)
    assert found.excess == pytest.approx(again.excess)
    assert found.cost < 0.8 * begun.cost
    assert (found.excess == 0.0) or tight


def test_rates_of_none_are_those_of_the_rule():
    problem = Problem(captured("mlp", 1, decompose=True), gpus(2), "strict", "thesis")
    device = np.arange(problem.graph.operator_count) % 2
    tables, rates = tables_of(problem), starting_rates(problem, device)
    channels = channels_at(tables, np.ascontiguousarray(rates))
    assert channels.rate[0, 1] == pytest.approx(rates[0, 1].sum())
