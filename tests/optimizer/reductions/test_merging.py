"""The compiled merging of nodes, against plain Python on small random graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.kernels.graphs import contraction
from placewire.optimizer.kernels.graphs.coarsening import coarsen, critical_path
from placewire.optimizer.kernels.graphs.fusing import fuses
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.comparison.reduction_report import critical_path_seconds
from placewire.optimizer.published.reductions.thesis_and_quickp import fused_within
from placewire.optimizer.reductions.coarsen import reduce_to
from placewire.optimizer.reductions.contract import contract
from placewire.optimizer.reductions.fusion import fused_groups, operator_delay
from placewire.optimizer.reductions.merging import MergingGraph, recorded_position
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, graph, graphs
from tests.optimizer.groups import between


@settings(max_examples=examples(40), deadline=None)
@given(graphs(largest=14), st.data())
def test_a_pair_merges_exactly_where_that_makes_no_cycle(made, data):
    problem = Problem(made, cluster())
    merging = MergingGraph(problem, np.full(made.operator_count, -1))
    tables = merging.tables
    for _ in range(12):
        group = merging.groups()
        roots = sorted(set(group.tolist()))
        if len(roots) < 2:
            break
        i, j = data.draw(st.permutations(roots))[:2]
        wanted = np.where(group == j, i, group)
        possible = nx.is_directed_acyclic_graph(between(problem, wanted))
        assert contraction.merge_acyclic(tables, i, j) == possible
        after = between(problem, merging.groups())
        assert after.number_of_nodes() == merging.node_count == len(roots) - possible
        # The positions are a topological order of the merged graph, and `at` is their inverse.
        assert all(tables.position[a] < tables.position[b] for a, b in after.edges)
        assert all(tables.at[tables.position[a]] == a for a in after.nodes)


@settings(max_examples=examples(40), deadline=None)
@given(graphs(largest=14), st.sampled_from([0.0, 0.03, 0.3, 5.0]))
def test_fusion_ends_where_algorithm_1_finds_no_edge(made, alpha):
    problem = Problem(made, cluster())
    merging = MergingGraph(problem)
    group = fused_groups(problem, alpha)
    left = between(problem, group)
    assert nx.is_directed_acyclic_graph(left)
    seconds = np.bincount(group, operator_delay(problem), made.operator_count)
    keys = {int(g): set(merging.colocation[group == g].tolist()) - {-1} for g in left.nodes}
    assert all(len(key) <= 1 for key in keys.values())
    for i, j in left.edges:
        apart = len(keys[i] | keys[j]) > 1
        degrees = left.out_degree(i), left.in_degree(j)
        assert apart or not fuses(*degrees, seconds[i], seconds[j], alpha)


@settings(max_examples=examples(40), deadline=None)
@given(graphs(largest=12), st.sampled_from([0.0, 0.03, 0.3]), st.integers(1, 3))
def test_fusion_within_groups_ends_where_algorithm_2_finds_no_edge(made, alpha, groups):
    problem = Problem(made, cluster())
    keys = np.arange(made.operator_count) % (groups + 1) - 1
    group = fused_within(problem, keys, alpha)
    left = between(problem, group)
    assert nx.is_directed_acyclic_graph(left)
    assert all(len(set(keys[group == g].tolist())) == 1 for g in left.nodes)
    seconds = np.bincount(group, operator_delay(problem), made.operator_count)
    for i, j in left.edges:
        if keys[i] < 0 or keys[i] != keys[j]:
            continue
        others = left.copy()
        others.remove_edge(i, j)
        inside = all(keys[k] == keys[i] for k in left.successors(i))
        assert nx.has_path(others, i, j) or not (seconds[j] < alpha or inside)


@settings(max_examples=examples(30), deadline=None)
@given(graphs(largest=14), st.integers(1, 8))
def test_coarsening_meets_its_target_or_ends_at_missing_edges(made, target):
    small, _ = reduce_to(Problem(made, cluster()), target)
    count = small.graph.operator_count
    assert count >= min(target, made.operator_count)
    if count > target:
        assert not len(small.graph.consumers)


@settings(max_examples=examples(40), deadline=None)
@given(graphs(largest=14), st.sampled_from([0.1, 0.3, np.inf]), st.sampled_from([1.0, 1.2, np.inf]))
def test_a_pass_merges_each_node_once_within_its_limits(made, most_seconds, factor):
    problem = Problem(made, cluster())
    merging = MergingGraph(problem, np.full(made.operator_count, -1))
    longest = critical_path(merging.tables)
    assert longest == pytest.approx(critical_path_seconds(problem))
    allowed = np.inf if factor == np.inf else factor * longest
    coarsen(merging.tables, merging.edges_in_order(), most_seconds, allowed, 1)
    group = merging.groups()
    left = between(problem, group)
    assert nx.is_directed_acyclic_graph(left)
    delays = operator_delay(problem)
    merged = [np.flatnonzero(group == g) for g in left.nodes if (group == g).sum() > 1]
    assert all(len(members) == 2 for members in merged)
    assert all(delays[members].sum() <= most_seconds * (1 + 1e-9) for members in merged)
    # The longest path through each pair, merged alone, is within the limit.
    for i, j in merged:
        alone = contract(problem, np.where(np.arange(len(group)) == j, i, np.arange(len(group))))
        through = path_through(alone[0], made.ids[min(i, j)])
        assert through <= allowed * (1 + 1e-9)


def path_through(problem, name):
    """Seconds of the longest path through that operator."""
    whole = between(problem, np.arange(problem.graph.operator_count))
    delays, i = operator_delay(problem), problem.graph.index_of[name]
    ends = []
    for step in (whole, whole.reverse()):
        best = {i: 0.0}
        for x in nx.topological_sort(step.subgraph(nx.descendants(step, i) | {i})):
            for y in step.successors(x):
                best[y] = max(best.get(y, 0.0), best[x] + delays[y])
        ends.append(max(best.values()))
    return sum(ends) + delays[i]


def test_coarsening_keeps_what_runs_in_parallel_apart():
    # Two branches of 20 operators of 1 s, joined at both ends, in twelve
    # parts: a node of both sides of the fork would put them one after the other.
    names = [f"{side}{k}" for side in "ab" for k in range(20)]
    chain = [(f"{s}{k}", [f"{s}{k + 1}"], 8) for s in "ab" for k in range(19)]
    # Every operator is also read at the end, so that no edge is Algorithm 1's.
    ends = [("in", ["a0", "b0"], 8), *((name, ["out"], 8) for name in names)]
    ends += [(f"x{s}", [f"{s}{k}" for k in range(20)], 8) for s in "ab"]
    seconds = {"in": 0.1, **dict.fromkeys(names, 1.0), "out": 0.1, "xa": 0.1, "xb": 0.1}
    problem = Problem(graph(seconds, [*chain, *ends]), cluster())
    small, _ = reduce_to(problem, 12)
    assert small.graph.operator_count == 12
    assert critical_path_seconds(small) <= 1.1 * critical_path_seconds(problem)


def test_a_long_chain_and_a_wide_fork_fuse_into_one():
    # Linked lists and the queue at sizes where a slip in either would show.
    n = 3000
    chain = [(f"o{i}", [f"o{i + 1}"], 8) for i in range(n)]
    fork = [(f"o{n}", [f"p{i}" for i in range(n)], 8)]
    made = graph({f"{k}{i}": 1.0 for k in "op" for i in range(n + 1)}, chain + fork)
    group = fused_groups(Problem(made, cluster()), alpha=1.0)
    assert len(set(group.tolist())) == 2  # p3000 is an operator without edges
    first = recorded_position(made)[0]
    assert (group == group[first]).sum() == 2 * n + 1
