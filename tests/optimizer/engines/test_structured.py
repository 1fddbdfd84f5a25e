"""Starts that the structure of a training step suggests."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.engine.setting import cluster
from benchmarks.layered import layered_training_graph
from placewire.optimizer.engines.costing import Costing
from placewire.optimizer.engines.layering import spectral_order, tail_groups
from placewire.optimizer.engines.structured import structured_starts
from placewire.optimizer.engines.units import unit_of_operator
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.profile.modelled import with_modelled_seconds
from placewire.optimizer.published.engines import heft
from tests.drawn_examples import examples
from tests.optimizer.problems import problems


@pytest.fixture(scope="module")
def problem() -> Problem:
    graph = with_modelled_seconds(layered_training_graph(600, seed=0), ("rtx4080s",))
    return Problem(graph, cluster(20.0))


def layer_of(problem: Problem) -> np.ndarray:
    """By the name that the generator gives: `…layer3_…`; -1 elsewhere."""
    found = [re.search(r"layer(\d+)_", name) for name in problem.graph.ids]
    return np.array([int(match[1]) if match else -1 for match in found])


def test_the_order_runs_along_the_layers_forward_and_backward_together(problem: Problem) -> None:
    unit = unit_of_operator(problem)
    order = spectral_order(problem.graph, unit)
    assert sorted(order.tolist()) == list(range(int(unit.max()) + 1))
    assert order.tolist() == spectral_order(problem.graph, unit).tolist()
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    layer = layer_of(problem)
    known = layer >= 0
    assert known.sum() > 300
    along = np.corrcoef(layer[known], place[unit][known])[0, 1]
    assert abs(along) > 0.9


def test_a_tail_is_an_update_with_what_only_it_needs(problem: Problem) -> None:
    graph = problem.graph
    groups = tail_groups(graph)
    seen = [i for group in groups for i in group]
    assert len(seen) == len(set(seen))
    updates = {i for i, kind in enumerate(graph.types) if kind == "update"}
    assert updates <= set(seen)
    for group in groups:
        inside = set(group)
        for i in group:
            readers = {
                c for e in graph.output_tensors(i).tolist() for c in graph.tensor_consumers(e)
            }
            assert readers <= inside or graph.colocation[i] >= 0


def test_blocks_beat_heft_on_a_slow_network_and_one_device(problem: Problem) -> None:
    costing = Costing(problem)
    starts = structured_starts(problem, lambda s: costing.cost(s).key)
    best = min(costing.cost(s).cost for s in starts)
    assert best < costing.cost(heft.solve(problem, SolveSettings())).cost
    assert best < problem.seconds[:, 0].sum()


@settings(max_examples=examples(25), deadline=None)
@given(problems())
def test_starts_are_placements_that_keep_groups_together(problem: Problem) -> None:
    costing = Costing(problem)
    unit = unit_of_operator(problem)
    for start in structured_starts(problem, lambda s: costing.cost(s).key):
        assert start.device.shape == (problem.graph.operator_count,)
        assert set(start.device.tolist()) <= set(range(len(problem.cluster.devices)))
        pairs = set(zip(unit.tolist(), start.device.tolist(), strict=True))
        assert len(pairs) == len(set(unit.tolist()))
