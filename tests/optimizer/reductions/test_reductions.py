"""Reductions: what they merge, that they stay acyclic, and that undoing gives a valid decision."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.kernels.annealing.cost import Scoring, cost
from placewire.optimizer.kernels.graphs.fusing import fuses
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.network.nics import widest_rates
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.chain import apply_chain, reduce_by_name
from placewire.optimizer.reductions.colocation import merge_colocated
from placewire.optimizer.reductions.contract import contract
from placewire.optimizer.reductions.fusion import fuse
from placewire.optimizer.reductions.mild import REDUCE_ABOVE
from placewire.optimizer.simulation.simulate import simulate
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, clusters, graph, graphs


@pytest.mark.parametrize(
    ("out_degree_i", "in_degree_j", "p_i", "p_j", "expected"),
    [
        (2, 2, 0.0, 0.0, False),  # line 1
        (1, 1, 9.0, 9.0, True),  # line 4
        (1, 2, 1.0, 9.0, True),  # line 7: i is light and has one successor
        (1, 2, 2.0, 0.0, False),
        (2, 1, 9.0, 1.0, True),  # line 8: j is light and has one predecessor
        (2, 1, 0.0, 2.0, False),
    ],
)
def test_algorithm_1_line_by_line(out_degree_i, in_degree_j, p_i, p_j, expected):
    assert fuses(out_degree_i, in_degree_j, p_i, p_j, alpha=1.0) is expected


def names(problem):
    return set(problem.graph.ids)


def test_chains_fuse_and_forks_do_not():
    # A -> B -> C -> {D, E} -> F: A, B, C are a chain; D and E hang on forks and cost something.
    made = graph(
        dict.fromkeys("ABCDEF", 1.0),
        [("A", ["B"], 8), ("B", ["C"], 8), ("C", ["D", "E"], 8), ("D", ["F"], 8), ("E", ["F"], 8)],
    )
    small, _ = fuse(Problem(made, cluster()))
    assert names(small) == {"A", "D", "E", "F"}
    assert small.graph.seconds[small.graph.index_of["A"], 0] == 3.0
    # With alpha above every cost, each light operator on a single edge is absorbed: all of it.
    whole, _ = fuse(Problem(made, cluster()), alpha=100.0)
    assert whole.graph.operator_count == 1


def test_parallel_edges_stay_distinct_tensors_and_one_tensor_is_one():
    # Once B and C are one, A sends it X once (B and C both read it) and Y: 5 + 7 bytes.
    made = graph(
        {"A": 1.0, "B": 1.0, "C": 1.0},
        [("A", ["B", "C"], 5), ("A", ["C"], 7), ("B", ["C"], 3)],
    )
    small, _ = contract(Problem(made, cluster()), np.array([0, 1, 1]))
    assert sorted(small.graph.tensor_bytes.tolist()) == [5, 7]
    assert small.graph.consumers.tolist() == [1, 1]


def test_operators_of_two_micro_batches_are_of_none_once_they_are_one():
    made = graph(dict.fromkeys("ABCD", 1.0), [("A", ["B"], 8), ("C", ["D"], 8)])
    made = replace(made, micro_batch=np.array([0, 0, 1, -1]))
    small, _ = contract(Problem(made, cluster()), np.array([0, 0, 1, 1]))
    assert small.graph.micro_batch.tolist() == [0, -1]


def test_colocated_operators_merge_only_where_no_path_leaves_and_returns():
    made = graph(
        dict.fromkeys(["P", "F", "U", "X", "Y"], 1.0),
        [("P", ["F"], 8), ("F", ["U"], 8), ("X", ["Y"], 8)],
        colocation={"P": "p", "U": "p", "X": "q", "Y": "q"},
    )
    small, _ = merge_colocated(Problem(made, cluster()))
    assert names(small) == {"P", "F", "U", "X"}
    keys = dict(zip(small.graph.ids, small.graph.colocation.tolist(), strict=True))
    assert keys["P"] == keys["U"] != keys["X"]


def test_operators_of_different_groups_are_not_fused():
    keys = {"A": "x", "X": "x", "B": "y", "Y": "y"}
    made = graph(dict.fromkeys("ABXY", 1.0), [("A", ["B"], 8)], colocation=keys)
    assert fuse(Problem(made, cluster()))[0].graph.operator_count == 4


def test_a_key_of_one_operator_ties_nothing_and_hides_no_other():
    made = graph(
        dict.fromkeys("ABC", 1.0),
        [("A", ["B"], 8)],
        colocation={"A": "k", "C": "k", "B": "z"},
    )
    small, _ = fuse(Problem(made, cluster()))
    assert names(small) == {"A", "C"}
    assert small.graph.colocation[0] == small.graph.colocation[1] >= 0


def test_fusion_leaves_groups_that_fit_when_the_graph_does_not():
    made = graph(
        {f"o{i}": 1.0 for i in range(20)},
        [(f"o{i}", [f"o{i + 1}"], 8) for i in range(19)],
        weight_bytes={f"o{i}": 100 for i in range(20)},
    )
    small, _ = fuse(Problem(made, cluster(memory=1600)))
    assert small.graph.weight_bytes.max() <= 200
    assert fuse(Problem(made, cluster(memory=2000)))[0].graph.operator_count == 1


def test_no_contraction_is_exact():
    """Costs 2, 8, 1, 8, 2, 6, one edge from the first to the last (transfer 1), two
    devices. The optimum is 14: the first on one device, its reader at 8 on the other. The two are
    a chain; fused into one operator of 8 the best is 16."""
    made = graph(
        {"a": 2.0, "b": 8.0, "c": 1.0, "d": 8.0, "e": 2.0, "f": 6.0}, [("a", ["f"], 1_000_000)]
    )
    problem = Problem(made, cluster(2))
    assert best_by_enumeration(problem) == pytest.approx(14.0)
    fused, _ = fuse(problem)
    assert fused.graph.operator_count == 5
    assert best_by_enumeration(fused) == pytest.approx(16.0)


def best_by_enumeration(problem):
    """The least cost over all placements and all priorities of the producers (a reader has only one
    choice)."""
    n = problem.graph.operator_count
    scoring = Scoring(False, False, 1.0, widest_rates(problem.usable))
    tables = tables_of(problem)
    best = np.inf
    for device in itertools.product(range(2), repeat=n):
        where = np.array(device)
        for first in range(n):
            for last in range(n):
                priority = np.zeros(n)
                priority[last] = -1.0
                priority[first] = 1.0
                best = min(best, cost(tables, scoring, where, priority)[0])
    return best


@settings(max_examples=examples(60), deadline=None)
@given(graphs(largest=12), clusters(), st.sampled_from([0.0, 0.03, 1.0]), st.data())
def test_undoing_gives_a_decision_for_the_whole_graph(made, where, alpha, data):
    """contract() builds an OperatorGraph, which refuses cycles; what is checked here beside it:
    nothing is lost, groups stay together, and the inherited priorities run without deadlock."""
    problem = Problem(made, where, "even")
    small, undo = apply_chain(problem, (merge_colocated, lambda p: fuse(p, alpha)))
    assert small.graph.seconds.sum() == pytest.approx(made.seconds.sum())
    assert small.graph.weight_bytes.sum() == made.weight_bytes.sum()
    count = small.graph.operator_count
    picks = st.integers(0, len(where.devices) - 1)
    device = np.array([data.draw(picks) for _ in range(count)], dtype=np.int64)
    priority = np.array(data.draw(st.permutations(range(count))), dtype=float)
    full_device, full_priority = undo(device, priority)
    assert len(set(full_priority.tolist())) == made.operator_count
    assert sorted(set(full_device.tolist())) == sorted(set(device.tolist()))
    timeline = simulate(problem, full_device, full_priority)
    assert np.isfinite(timeline.step_seconds)


def test_names_of_reductions():
    count = REDUCE_ABOVE + 1
    made = graph(
        {f"o{i}": 1.0 for i in range(count)},
        [(f"o{i}", [f"o{i + 1}"], 8) for i in range(count - 1)],
    )
    problem = Problem(made, cluster())
    assert reduce_by_name(problem, "none")[0].graph.operator_count == count
    assert reduce_by_name(problem, "none")[2] == "none"
    for name in ("auto", "chain", "fusion", "thesis", "icc"):
        small, _, words = reduce_by_name(problem, name)
        assert small.graph.operator_count == 1
        assert words == f"{name}: {count} -> 1 operators, 0 groups"
    with pytest.raises(ValueError, match="unknown reduction 'magic'; accepted: auto, celeritas"):
        reduce_by_name(problem, "magic")


def test_auto_leaves_a_small_graph_alone_and_chain_leaves_groups_apart():
    made = graph(dict.fromkeys("ABXY", 1.0), [("A", ["B"], 8)], colocation={"X": "k", "Y": "k"})
    problem = Problem(made, cluster())
    assert reduce_by_name(problem, "auto")[0].graph.operator_count == 4
    assert names(reduce_by_name(problem, "chain")[0]) == {"A", "X", "Y"}
    assert names(reduce_by_name(problem, "fusion")[0]) == {"A", "X"}
