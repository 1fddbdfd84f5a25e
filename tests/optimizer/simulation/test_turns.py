"""Simulating a move in part, where devices keep to the recorded sort, gives the whole step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewire.optimizer.engines import annealing_chain
from placewire.optimizer.engines.annealing_chain import Walker
from placewire.optimizer.engines.costing import Costing, Found
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.kernels.annealing.anneal_turns import (
    _SECTION,
    anneal_turns,
    channels_at,
    keep_turns,
    last_readers,
    new_turns,
    run_turns,
)
from placewire.optimizer.kernels.simulation.contention_free import contention_free
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.names import SharingName
from placewire.optimizer.problem import Problem
from tests.drawn_examples import examples
from tests.optimizer.cases import clusters, devices_of, layered
from tests.optimizer.peers.steps import captured, gpus
from tests.optimizer.problems import SHARINGS


def whole(problem: Problem, device: np.ndarray, rates: np.ndarray) -> tuple[float, np.ndarray]:
    tables, n = tables_of(problem), len(device)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(len(tables.producer))
    position = np.empty(n, dtype=np.int64)
    return contention_free(tables, device, rates, start, finish, sent, position), finish


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_move_simulated_in_part_equals_a_whole_simulation(data):
    made = layered(12, 2, seed=data.draw(st.integers(0, 1000)))
    problem = Problem(made, data.draw(clusters()), "even", "thesis")
    tables, rates = tables_of(problem), problem.rates_in_force(None)
    device = data.draw(devices_of(problem))
    n, devices = len(device), len(tables.server)
    channels, (place, last) = channels_at(tables, rates), last_readers(tables)
    old, new = new_turns(n, devices), new_turns(n, devices)
    network = tables, channels, place, last, Walker(problem).tails
    _, until = run_turns(*network, device, old, new, 0, n, np.inf)
    keep_turns(tables, old, new, 0, until)
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for _ in range(20):
        moved = device.copy()
        some = chance.integers(n, size=chance.integers(1, 4))
        moved[some] = chance.integers(devices, size=len(some))
        begin = int(place[some].min()) // _SECTION
        concerned = int(max(place[some].max(), last[some].max()))
        expected, finish = whole(problem, moved, rates)
        step, until = run_turns(*network, moved, old, new, begin, concerned, np.inf)
        assert step == expected
        limit = expected * (1 - 1e-9)
        assert run_turns(*network, moved, old, new, begin, concerned, limit)[0] > limit
        limit = expected * (1 + 1e-9)
        assert run_turns(*network, moved, old, new, begin, concerned, limit)[0] == expected
        if chance.random() < 0.6:
            _, until = run_turns(*network, moved, old, new, begin, concerned, np.inf)
            keep_turns(tables, old, new, begin, until)
            device = moved
            assert (old.finish == finish).all()
            in_sort = finish[tables.topological]
            for k in range(len(old.before)):
                assert old.before[k] == in_sort[: _SECTION * k].max(initial=0.0)
                assert old.after[k] == in_sort[_SECTION * k :].max(initial=0.0)


def problem_in_turns(sharing: SharingName) -> Problem:
    """Operators of a small model take little more than their launch; these are longer."""
    problem = Problem(captured("mlp", 1, decompose=True), gpus(4), sharing, "thesis")
    return replace(problem, graph=replace(problem.graph, seconds=problem.graph.seconds * 100))


def annealed(problem: Problem) -> tuple[Found, Found, Found]:
    """(what the search began with, what it found, the same as a whole simulation has it)."""
    walker = Walker(problem)
    assert walker.takes_turns
    n = problem.graph.operator_count
    alternating = np.arange(n) % 4
    chain = walker.chain(Solution(alternating[walker.neighbourhood.unit], np.zeros(n), None))
    begun = walker.costing.cost(Solution(chain.device, chain.priority, None))
    rates = walker.held_rates(chain) if problem.decides_rates else None
    step, hold = begun.cost, problem.decides_rates
    found = walker.walk(chain, 4_000, 0.1 * step, 1e-4 * step, 7, hold=hold)
    return begun, found, Costing(problem).cost(found.solution, rates)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_annealing_in_turns_finds_what_it_says(sharing, monkeypatch):
    walked = []

    def noted(*given):
        walked.append(given)
        return anneal_turns(*given)

    monkeypatch.setattr(annealing_chain, "anneal_turns", noted)
    problem = problem_in_turns(sharing)
    begun, found, again = annealed(problem)
    assert walked
    source, target, tensor = problem.graph.edges
    sent = problem.graph.tensor_bytes[tensor] > 0
    assert (sent & (found.device[source] != found.device[target])).any()
    assert found.cost == pytest.approx(again.cost, rel=1e-9)
    assert found.excess == again.excess == 0.0
    assert found.cost < 0.8 * begun.cost


def test_annealing_in_turns_counts_what_a_memory_lacks():
    problem = problem_in_turns("strict")
    held = problem.graph.weight_bytes + problem.graph.activation_bytes
    held = held + problem.graph.workspace_bytes
    begun, found, again = annealed(replace(problem, cluster=gpus(4, memory=int(0.6 * held.sum()))))
    assert found.cost == pytest.approx(again.cost, rel=1e-9)
    assert found.excess == pytest.approx(again.excess)
    assert found.cost < 0.8 * begun.cost
