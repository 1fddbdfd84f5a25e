"""Reductions of ColocRL, Placeto, SpotLight, Pesto and HSDAG: examples worked by hand from what the
papers say of them, and a property of each."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.engines.place import place
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.comparison.reduction_report import critical_path_seconds
from placewire.optimizer.published.kernels.batches import merge_batch
from placewire.optimizer.published.reductions.colocrl import (
    only_successor_groups,
    reduce_as_colocrl,
)
from placewire.optimizer.published.reductions.hsdag import reduce_as_hsdag
from placewire.optimizer.published.reductions.pesto import merge_in_batches
from placewire.optimizer.published.reductions.placeto import merge_cheapest, reduce_as_placeto
from placewire.optimizer.published.reductions.spotlight import (
    module_path,
    prefix_groups,
    two_level_prefix,
)
from placewire.optimizer.reductions.chain import reduce_by_name
from placewire.optimizer.reductions.merging import (
    MergingGraph,
    distinct_edges,
    operator_delay,
    units_of,
)
from placewire.optimizer.reductions.refusals import ReductionRefusedError
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, described, graph, graphs
from tests.optimizer.groups import between, edges, together


def problem_of(seconds, *pairs, size=8, **columns):
    if isinstance(seconds, str):
        seconds = dict.fromkeys(seconds, 1.0)
    return Problem(graph(seconds, edges(*pairs, size=size), **columns), cluster())


def members(problem, reduced):
    """{"AB", "C"}: the operators of each operator of the reduced problem, as words."""
    small, undo = reduced
    count = small.graph.operator_count
    return together(problem, undo(np.arange(count), np.zeros(count))[0])


def without_keys(made):
    return replace(made, colocation=np.full(made.operator_count, -1))


# ColocRL


def test_colocrl_ties_an_operator_to_its_only_successor():
    # A has two successors; B's only successor is D, C's is E.
    problem = problem_of("ABCDE", "AB", "AC", "BD", "CE")
    assert together(problem, only_successor_groups(problem)) == {"BD", "CE"}
    small, _ = reduce_as_colocrl(problem)
    assert small.graph.operator_count == 5, "it co-locates and fuses nothing"


def test_colocrl_goes_on_from_successor_to_successor_and_not_over_a_fork():
    # B and C both lead to D alone; A leads to two operators, though these are one group.
    problem = problem_of("XABCDE", "XA", "AB", "AC", "BD", "CD", "DE")
    assert together(problem, only_successor_groups(problem)) == {"XA", "BCDE"}


def test_colocrl_keeps_two_keys_apart_and_ties_a_gradient_to_its_update():
    # F alone reads P, and the updates U and V alone read the gradients G and H: P, G and H join
    # their readers. F and Q have two readers.
    keys = {"P": "p", "U": "p", "Q": "q", "V": "q"}
    tensors = ["PF", "FG", "FH", "GU", "HV", "QG", "QH"]
    problem = problem_of("PFGUHQV", *tensors, colocation=keys)
    assert together(problem, only_successor_groups(problem)) == {"PFGU", "HQV"}
    # F is the only reader of P and of Q, which sends more.
    read = [("P", ["F"], 8), ("Q", ["F"], 9), ("F", ["U", "V"], 8)]
    made = graph(dict.fromkeys("PFUQV", 1.0), read, colocation=keys)
    problem = Problem(made, cluster())
    assert together(problem, only_successor_groups(problem)) == {"PU", "FQV"}


def test_colocrl_is_searched_though_it_leaves_as_many_operators():
    problem = problem_of("ABCDE", "AB", "AC", "BD", "CE", size=1000)
    found = place(problem, "auto", SolveSettings(gap=0.0, moves=90), "colocrl")
    assert found.reduction == "colocrl: 5 -> 5 operators, 2 groups"
    assert "refine" in found.wall_seconds, "after a search on the groups"
    found = place(problem, "auto", SolveSettings(gap=0.0, moves=90), "none")
    assert "refine" not in found.wall_seconds


@settings(max_examples=examples(80), deadline=None)
@given(graphs(largest=14))
def test_colocrl_groups_are_what_leads_to_one_operator_alone(made):
    problem = Problem(without_keys(made), cluster())
    unit = units_of(only_successor_groups(problem))
    source, target, _ = distinct_edges(problem.graph)
    count = np.bincount(source, minlength=made.operator_count)
    assert all(unit[i] == unit[j] for i, j in zip(source, target, strict=True) if count[i] == 1)
    # Each group has exactly one operator without an only successor.
    assert np.bincount(unit, count != 1).tolist() == [1.0] * (int(unit.max()) + 1)
    assert nx.is_directed_acyclic_graph(between(problem, unit))


# Placeto


def test_placeto_merges_the_cheapest_into_a_successor_else_into_a_predecessor():
    seconds = {"A": 5.0, "B": 1.0, "C": 4.0, "D": 2.0}
    problem = problem_of(seconds, "AB", "BC", "CD")
    assert members(problem, merge_cheapest(problem, 3)) == {"A", "BC", "D"}
    # Then D (2 s) is the cheapest; it has no successor.
    assert members(problem, merge_cheapest(problem, 2)) == {"A", "BCD"}
    assert members(problem, merge_cheapest(problem, 1)) == {"ABCD"}


def test_placeto_merges_with_the_successor_that_no_other_path_leads_to():
    # To merge A and C would make a cycle through B.
    problem = problem_of({"A": 1.0, "B": 5.0, "C": 5.0}, "AB", "BC", "AC")
    assert members(problem, merge_cheapest(problem, 2)) == {"AB", "C"}
    # A sink is merged with its last predecessor, from which no other path leads to it.
    problem = problem_of({"A": 5.0, "B": 5.0, "C": 1.0}, "AB", "BC", "AC")
    assert members(problem, merge_cheapest(problem, 2)) == {"A", "BC"}


def test_placeto_passes_over_what_may_not_be_merged():
    keys = {"A": "x", "X": "x", "B": "y", "Y": "y"}
    seconds = {"A": 1.0, "B": 2.0, "C": 3.0, "X": 9.0, "Y": 9.0}
    problem = problem_of(seconds, "AB", "AC", colocation=keys)
    assert members(problem, merge_cheapest(problem, 1)) == {"AC", "B", "X", "Y"}


def test_placeto_has_the_size_of_the_thesis_reduction():
    problem = problem_of("ABCDEFGH", "AB", "AC", "BD", "CD", "DE", "DF", "EG", "FG", "GH")
    thesis, _, _ = reduce_by_name(problem, "thesis")
    small, _ = reduce_as_placeto(problem)
    assert small.graph.operator_count == thesis.graph.operator_count
    with pytest.raises(ValueError, match="at least 1"):
        merge_cheapest(problem, 0)


@settings(max_examples=examples(80), deadline=None)
@given(graphs(largest=14), st.integers(1, 14))
def test_placeto_meets_its_target_wherever_edges_allow(made, target):
    problem = Problem(without_keys(made), cluster())
    small, _ = merge_cheapest(problem, target)
    whole: nx.DiGraph[int] = nx.DiGraph()
    whole.add_nodes_from(range(made.operator_count))
    source, kind, _ = distinct_edges(made)
    whole.add_edges_from(zip(source.tolist(), kind.tolist(), strict=True))
    parts = nx.number_weakly_connected_components(whole)
    assert small.graph.operator_count == max(min(target, made.operator_count), parts)


@settings(max_examples=examples(60), deadline=None)
@given(graphs(largest=12))
def test_placeto_merges_the_cheapest_first(made):
    """A single merge takes in an operator of least delay among those that have a neighbour."""
    problem = Problem(without_keys(made), cluster())
    source, target, _ = distinct_edges(made)
    joined = np.union1d(source, target)
    merged = [one for one in groups_of(problem, made.operator_count - 1) if len(one) > 1]
    assert len(merged) == (len(joined) > 0)
    for pair in merged:
        assert operator_delay(problem)[pair].min() == operator_delay(problem)[joined].min()


def groups_of(problem, target):
    small, undo = merge_cheapest(problem, max(1, target))
    label, _ = undo(np.arange(small.graph.operator_count), np.zeros(small.graph.operator_count))
    return [np.flatnonzero(label == k) for k in range(small.graph.operator_count)]


# SpotLight


@pytest.mark.parametrize(
    ("identifier", "prefix"),
    [
        ("sequential_1/conv2d_1/convolution", "sequential_1/conv2d_1"),
        ("sequential_1/conv2d_1/Reshape", "sequential_1/conv2d_1"),
        ("/encoder/layers.0/attention/MatMul", "encoder/layers.0"),
        ("a/b", "a/b"),
        ("relu_3", ""),
        ("", ""),
    ],
)
def test_spotlight_two_level_prefixes(identifier, prefix):
    assert two_level_prefix(identifier) == prefix


def named(problem, **ids):
    made = problem.graph
    return replace(problem, graph=replace(made, ids=tuple(ids[name] for name in made.ids)))


def test_spotlight_the_example_of_the_thesis():
    problem = named(
        problem_of("ABCD", "AB", "BC", "CD"),
        A="sequential_1/conv2d_1/convolution", B="sequential_1/conv2d_1/Reshape",
        C="sequential_1/conv2d_2/convolution", D="loss",
    )  # fmt: skip
    small, _, words = reduce_by_name(problem, "spotlight")
    assert words == "spotlight: 4 -> 3 operators, 0 groups"
    assert small.graph.seconds[:, 0].tolist() == [2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("model.layers.3.attention.query", "model/layers.3/attention/query"),
        ("model.features.0", "model/features.0"),
        ("model", "model"),
        ("model.a1.b", "model/a1/b"),
        ("", ""),
    ],
)
def test_spotlight_a_number_is_no_level_of_a_module(module, path):
    assert module_path(module) == path


def test_spotlight_goes_by_modules_where_there_are_any():
    problem = problem_of("ABCD", "AB", "BC", "CD")
    modules = ("model.layers.0.norm", "model.layers.0.attention", "model.layers.1.norm", "")
    problem = replace(problem, graph=replace(problem.graph, modules=modules))
    small, _, words = reduce_by_name(problem, "spotlight")
    assert words == "spotlight: 4 -> 3 operators, 0 groups"
    assert small.graph.modules == ("model.layers.0.norm", "model.layers.1.norm", "")


def test_spotlight_a_group_that_would_close_a_loop_stays_several_on_one_device():
    problem = named(problem_of("ABC", "AB", "BC", "AC"), A="m/x/1", B="m/y/1", C="m/x/2")
    small, _, words = reduce_by_name(problem, "spotlight")
    assert words == "spotlight: 3 -> 3 operators, 1 groups"
    assert small.graph.colocation[0] == small.graph.colocation[2] >= 0


def test_spotlight_refuses_ids_that_are_no_paths():
    with pytest.raises(ReductionRefusedError, match="no two operators of this graph share any"):
        reduce_by_name(problem_of("AB", "AB"), "spotlight")


@settings(max_examples=examples(60), deadline=None)
@given(graphs(largest=14))
def test_spotlight_groups_are_the_prefixes(made):
    problem = Problem(without_keys(described(made)), cluster())
    try:
        keys = prefix_groups(problem)
    except ReductionRefusedError:
        prefixes = [two_level_prefix(name) for name in problem.graph.ids]
        assert len(set(prefixes)) == len(prefixes)
        return
    for i, a in enumerate(problem.graph.ids):
        for j, b in enumerate(problem.graph.ids[:i]):
            same = two_level_prefix(a) == two_level_prefix(b)
            assert (keys[i] == keys[j] >= 0) == same


# Pesto


def test_pesto_a_batch_takes_many_edges_and_each_operator_once():
    # Four pairs side by side and a chain of four: one batch halves all of it.
    pairs = ["AB", "CD", "EF", "GH", "IJ", "JK", "KL"]
    problem = problem_of("ABCDEFGHIJKL", *pairs)
    merging = MergingGraph(problem)
    assert merge_batch(merging.tables, merging.edges_in_order(), 2, 1) == 6
    assert together(problem, merging.groups()) == {"AB", "CD", "EF", "GH", "IJ", "KL"}


def test_pesto_edges_that_are_safe_one_by_one_and_not_together():
    # A -> B or C -> D may be merged; both at once make a cycle through A -> D and C -> B.
    tensors = [("A", ["B"], 9), ("C", ["D"], 8), ("A", ["D"], 1), ("C", ["B"], 1)]
    problem = Problem(graph(dict.fromkeys("ABCD", 1.0), tensors), cluster())
    merging = MergingGraph(problem)
    heaviest_first = np.argsort(-merging.edge_bytes, kind="stable")
    assert merge_batch(merging.tables, heaviest_first, 2, 1) == 1
    assert together(problem, merging.groups()) == {"AB", "C", "D"}


def test_pesto_a_fork_is_merged_in_growing_groups():
    # With one pair in each batch, 100 children would take 100 batches.
    names = ["A", *(f"c{k}" for k in range(100))]
    made = graph(dict.fromkeys(names, 1.0), [("A", names[1:], 8)])
    problem = Problem(made, cluster())
    merging = MergingGraph(problem)
    assert merge_batch(merging.tables, merging.edges_in_order(), 2, 1) == 1
    assert merge_batch(merging.tables, merging.edges_in_order(), 64, 1) == 63
    assert merge_in_batches(problem, 1)[0].graph.operator_count == 1
    # The same holds for 100 operators in front of one successor.
    joined = graph(dict.fromkeys(names, 1.0), [(name, ["A"], 8) for name in names[1:]])
    merging = MergingGraph(Problem(joined, cluster()))
    assert merge_batch(merging.tables, merging.edges_in_order(), 64, 1) == 63


def test_pesto_an_edge_beside_another_path_waits():
    # A -> C is the heaviest edge, but not the only path from A to C.
    tensors = [("A", ["B"], 1), ("B", ["C"], 2), ("A", ["C"], 9)]
    problem = Problem(graph(dict.fromkeys("ABC", 1.0), tensors), cluster())
    assert members(problem, merge_in_batches(problem, 2)) == {"A", "BC"}
    with pytest.raises(ValueError, match="at least 1"):
        merge_in_batches(problem, 0)


@settings(max_examples=examples(80), deadline=None)
@given(graphs(largest=16), st.sampled_from([2, 3, 100]), st.randoms(use_true_random=False))
def test_pesto_a_batch_makes_no_cycle_and_keeps_the_order_of_the_rest(made, most_nodes, random):
    problem = Problem(without_keys(made), cluster())
    merging = MergingGraph(problem)
    tables = merging.tables
    edges_to_try = list(range(len(tables.source)))
    while True:
        random.shuffle(edges_to_try)
        before = merging.groups()
        merged = merge_batch(tables, np.array(edges_to_try, dtype=np.int64), most_nodes, 1)
        after = between(problem, merging.groups())
        assert nx.is_directed_acyclic_graph(after)
        assert after.number_of_nodes() == merging.node_count
        assert all(tables.position[a] < tables.position[b] for a, b in after.edges)
        assert all(tables.at[tables.position[a]] == a for a in after.nodes)
        sizes = [len(set(before[merging.groups() == g].tolist())) for g in after.nodes]
        assert max(sizes) <= most_nodes
        if not merged:
            break
    assert not after.edges


# HSDAG


def test_hsdag_ties_only_child_and_only_parent():
    # A-B is a chain; B has two children; D has two parents; E-F-G is a chain behind it.
    problem = problem_of("ABCDEFG", "AB", "BC", "BD", "CD", "DE", "EF", "FG")
    assert members(problem, reduce_as_hsdag(problem)) == {"AB", "C", "DEFG"}


@settings(max_examples=examples(80), deadline=None)
@given(graphs(largest=14))
def test_hsdag_leaves_no_edge_between_an_only_child_and_its_only_parent(made):
    problem = Problem(without_keys(made), cluster())
    small, _ = reduce_as_hsdag(problem)
    source, target, _ = distinct_edges(small.graph)
    count = small.graph.operator_count
    children, parents = np.bincount(source, minlength=count), np.bincount(target, minlength=count)
    assert not ((children[source] == 1) & (parents[target] == 1)).any()
    # Only chains are fused, so that no path of operator times grows.
    assert critical_path_seconds(small) == pytest.approx(critical_path_seconds(problem))
