"""No bound is above the step of any placement, under every model with every sharing.

The problems have what bounds may overlook: links slower and faster than what they replace, servers
that carry nothing, neighbours that take all of a NIC, several devices in a server.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from placewire.optimizer.bounds import lower_bound, strong_bound
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.network.traffic import concurrent_rates
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import graph
from tests.optimizer.problems import SHARINGS, able_devices, drawn, problems

STARTS = 3


@st.composite
def admissible_rates(draw: st.DrawFn, problem: Problem) -> np.ndarray | None:
    if not problem.decides_rates:
        return None
    count = len(problem.cluster.servers)
    weight = st.sampled_from([0.05, 1.0, 3.0])
    traffic = np.array([[draw(weight) for _ in range(count)] for _ in range(count)])
    np.fill_diagonal(traffic, 0.0)
    return concurrent_rates(problem.usable, traffic)


@st.composite
def forks(draw: st.DrawFn) -> OperatorGraph:
    """Branches of long operators, whose transfers decide how many of them are worth a device."""
    seconds, size = st.sampled_from([0.1, 0.25]), st.sampled_from([65_535, 200_000])
    middle = [f"m{k}" for k in range(draw(st.integers(2, 4)))]
    made = graph(
        {name: draw(seconds) for name in ("A", *middle, "Z")},
        [("A", middle, draw(size)), *((m, ["Z"], draw(size)) for m in middle)],
    )
    both = made.seconds[:, 0]
    return made.with_seconds({"cpu": both, "accelerator": both / draw(st.sampled_from([1.0, 2.0]))})


@st.composite
def problems_with_a_step(draw: st.DrawFn, model, sharing) -> tuple[Problem, float]:
    """A problem, and the shortest step that is found; inf where no placement tried ever ends."""
    problem = replace(draw(problems(largest=5, models=(model,), extremes=True)), sharing=sharing)
    if draw(st.booleans()):
        problem = replace(problem, graph=draw(forks()))
    count = problem.graph.operator_count
    shortest = np.inf
    for _ in range(STARTS):
        start = draw(able_devices(problem))
        priority = np.array(draw(st.permutations(range(count))), dtype=float)
        rates = draw(admissible_rates(problem))
        shortest = min(shortest, _descended(problem, start, priority, rates))
    return problem, shortest


def _descended(problem: Problem, device, priority, rates) -> float:
    """The step in seconds after no move of one unit to another device makes it shorter."""
    key = problem.graph.colocation

    def step(of) -> float:
        return simulate(problem, of, priority, None, rates).step_seconds

    shortest, better = step(device), True
    while better:
        better = False
        for i, d in itertools.product(range(len(key)), range(len(problem.cluster.devices))):
            moved = np.where((key == key[i]) & (key >= 0), d, device)
            moved[i] = d
            if np.isfinite(problem.seconds[np.arange(len(key)), moved]).all():
                seconds = step(moved)
                if seconds < shortest * (1 - 1e-9):
                    device, shortest, better = moved, seconds, True
    return shortest


# The model `msr` has no NICs, and so no sharing; few of its examples have a link that matters.
WAYS = [(model, sharing, 60) for model in ("contended", "thesis") for sharing in SHARINGS]
WAYS += [("msr", "unshaped", 300)]


@pytest.mark.hypothesis
@pytest.mark.parametrize(("model", "sharing", "examples"), WAYS)
def test_no_quick_bound_is_above_a_step(model, sharing, examples):
    @drawn(examples)
    @given(problems_with_a_step(model, sharing))
    def holds(made):
        problem, step = made
        assert lower_bound(problem).seconds <= step * (1 + 1e-9)

    holds()


@pytest.mark.hypothesis
@pytest.mark.parametrize(("model", "sharing", "examples"), WAYS)
def test_no_strong_bound_is_above_a_step(model, sharing, examples):
    """The search is told of a longer step only, as its bound is never above the one it knows."""

    @drawn(examples // 4)
    @given(problems_with_a_step(model, sharing), st.sampled_from([1.3, 3.0]))
    def holds(made, looseness):
        problem, step = made
        assume(np.isfinite(step))
        bound = strong_bound(problem, step * looseness, 0.5)
        assert bound.seconds <= step * (1 + 1e-9)
        assert "failed" not in bound.reason

    holds()
