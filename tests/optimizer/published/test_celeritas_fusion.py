"""Celeritas' orders, CCR and Optimal Operation Fusion: the situations of figures 3 and 4 (whose
drawings are not in the text), the equations worked by hand, and the cuts against all other cuts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.graphs import layered_training_graph
from placewire.optimizer.cluster import Link
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.comparison.reduction_report import reduction_report
from placewire.optimizer.published.reductions.celeritas import optimal_operation_fusion
from placewire.optimizer.published.reductions.shared.transfers import (
    communication_to_computing,
    transfer_seconds,
)
from placewire.optimizer.published.reductions.topological import (
    cpd_topo,
    dfs_topo,
    m_topo,
    path_levels,
)
from placewire.optimizer.reductions.contract import contract
from placewire.optimizer.reductions.merging import operator_bytes
from tests.drawn_examples import examples
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graph, graphs

SECOND = 1_000_000  # bytes that take a second between two servers of `cluster()`
ALL_MEMORY = 1.0


def clusters_of(problem, most_operators, memory_part=ALL_MEMORY):
    """{"AB", "C"}: the operators of each cluster, as words, in the recorded order."""
    small, undo = optimal_operation_fusion(problem, most_operators, memory_part)
    count = small.graph.operator_count
    group, _ = undo(np.arange(count), np.zeros(count))
    words = [""] * count
    for name, label in zip(problem.graph.ids, group.tolist(), strict=True):
        words[label] += name
    return set(words)


def word(problem, order):
    return "".join(problem.graph.ids[i] for i in order.tolist())


def test_figure_3_the_order_decides_how_many_edges_two_devices_cut():
    # Four pairs; each device takes half of the order. M-TOPO: 4 edges cut; DFS-TOPO: none.
    pairs = [("A", "E"), ("B", "F"), ("C", "G"), ("D", "H")]
    made = graph(dict.fromkeys("ABCDEFGH", 1.0), [(a, [b], SECOND) for a, b in pairs])
    problem = Problem(made, cluster())
    orders = {"ABCDEFGH": m_topo(made), "AEBFCGDH": dfs_topo(made)}
    for (expected, order), cut in zip(orders.items(), (4, 0), strict=True):
        assert word(problem, order) == expected
        first_half = expected[:4]
        assert sum((a in first_half) != (b in first_half) for a, b in pairs) == cut
    assert word(problem, cpd_topo(problem)) == "AEBFCGDH"


FIGURE_4 = graph(
    dict.fromkeys("MYZN", 1.0),
    [("M", ["Y"], SECOND), ("Y", ["Z"], SECOND), ("Z", ["N"], SECOND), ("M", ["N"], 9 * SECOND)],
)


def test_figure_4_merging_two_ends_of_another_path_is_a_loop_and_never_done():
    problem = Problem(FIGURE_4, cluster())
    with pytest.raises(GraphError, match="cycle"):
        contract(problem, np.array([0, 1, 2, 0]))
    # M and N together would be the cheapest cut, but would make a cycle.
    for most_operators in (1, 2, 3):
        for one in clusters_of(problem, most_operators):
            assert not {"M", "N"} <= set(one)
    assert clusters_of(problem, 4) == {"MYZN"}


def test_ccr_1_by_hand():
    # Three edges of 1, 2 and 0 s, computing 4 s. One tensor with two readers is two edges.
    tensors = [("A", ["B"], SECOND), ("A", ["C"], 2 * SECOND), ("B", ["C"], 0)]
    made = graph({"A": 1.0, "B": 1.0, "C": 2.0}, tensors)
    assert communication_to_computing(Problem(made, cluster())) == pytest.approx(3 / 4)
    # p0 for each tensor that is sent, and nothing for the ordering edge.
    late = Problem(made, cluster(latency=0.5))
    assert transfer_seconds(late)[2].tolist() == pytest.approx([1.5, 2.5, 0.0])
    assert communication_to_computing(late) == pytest.approx(4 / 4)
    # B and C share a device: the tensor between them is not sent, those that they read are.
    tied = graph({"A": 1.0, "B": 1.0, "C": 2.0}, tensors, colocation={"A": "k", "C": "k"})
    assert communication_to_computing(Problem(tied, cluster())) == pytest.approx(1 / 4)
    assert communication_to_computing(Problem(graph({"A": 1.0}, []), cluster())) == 0.0
    free = graph({"A": 0.0, "B": 0.0}, [("A", ["B"], SECOND)])
    assert communication_to_computing(Problem(free, cluster())) == np.inf


def test_transfers_count_with_links_where_links_join_the_devices():
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], SECOND)])
    link = Link(source="s1/0", destination="s2/0", setup_latency_seconds=1.0,
                rate_bits_per_second=3 * BYTE_PER_MICROSECOND)  # fmt: skip
    joined = cluster().model_copy(update={"links": (link,)})
    # One way by the link, the other by the NICs: 16 Mbit/s and half a second in the mean.
    assert transfer_seconds(Problem(made, joined))[2].tolist() == pytest.approx([0.5 + 0.5])
    # A single server has the rate inside it, ten times the NIC's.
    assert transfer_seconds(Problem(made, cluster(1)))[2].tolist() == pytest.approx([0.1])


FORK = graph(
    {"A": 1.0, "B": 2.0, "C": 5.0, "D": 1.0},
    [("A", ["B"], 4 * SECOND), ("A", ["C"], SECOND), ("B", ["D"], SECOND), ("C", ["D"], SECOND)],
)


def test_levels_2_and_3_and_the_critical_path_first():
    # Through B: 1 + 4 + 2 + 1 + 1 = 9 s, through C: 1 + 1 + 5 + 1 + 1 = 9 s.
    problem = Problem(FORK, cluster())
    top, bottom = path_levels(problem)
    assert top.tolist() == [0.0, 5.0, 2.0, 8.0]
    assert bottom.tolist() == [9.0, 4.0, 7.0, 1.0]
    assert word(problem, cpd_topo(problem)) == "ABCD"  # equal: the first recorded
    longer = FORK.with_seconds({"cpu": np.array([1.0, 2.0, 5.5, 1.0])})
    assert word(problem, cpd_topo(Problem(longer, cluster()))) == "ACBD"


def test_cpd_topo_begins_at_the_longest_path_and_goes_deep():
    # Of the two roots Z comes first, with the longer path; then, depth first, what becomes ready
    # behind Z, before the other root.
    seconds = {"A": 1.0, "B": 1.0, "Z": 5.0, "Y": 1.0, "X": 3.0, "W": 1.0}
    tensors = [("A", ["B"], 0), ("Z", ["Y", "X"], 0), ("X", ["W"], 0)]
    problem = Problem(graph(seconds, tensors), cluster())
    assert word(problem, cpd_topo(problem)) == "ZXWYAB"


def test_breakpoints_6_by_hand():
    # A chain that sends 5, 1, 5 s: with R = 2 it is cut at the 1; with R = 3 there too, as any cut
    # into two clusters costs one edge.
    sends = [("A", ["B"], 5 * SECOND), ("B", ["C"], SECOND), ("C", ["D"], 5 * SECOND)]
    weights = {"A": 30, "B": 10, "C": 10, "D": 10}
    made = graph(dict.fromkeys("ABCD", 1.0), sends, weight_bytes=weights)
    problem = Problem(made, cluster(memory=100))
    assert clusters_of(problem, 1) == {"A", "B", "C", "D"}
    assert clusters_of(problem, 2) == {"AB", "CD"}
    assert clusters_of(problem, 3) == {"AB", "CD"}
    assert clusters_of(problem, 4) == {"ABCD"}
    # M = 30: A + B has 40 bytes, so that A stays alone.
    assert clusters_of(problem, 4, 0.3) == {"A", "BCD"}
    # M = 29: A alone holds more, and is a cluster of its own all the same.
    assert clusters_of(problem, 4, 0.29) == {"A", "B", "CD"}


def test_of_equal_cuts_the_longer_clusters_are_taken():
    problem = Problem(graph(dict.fromkeys("ABCD", 1.0), []), cluster())
    assert clusters_of(problem, 3) == {"A", "BCD"}


def test_no_cluster_is_made_that_no_device_can_run():
    made = graph(dict.fromkeys("ABC", 1.0), [("A", ["B"], SECOND), ("B", ["C"], SECOND)])
    seconds = np.array([[1.0, 1.0], [1.0, np.inf], [np.inf, 1.0]])
    made = replace(made, device_types=("cpu", "gpu"), seconds=seconds)
    problem = Problem(made, cluster(2, types=["cpu", "gpu"]))
    assert clusters_of(problem, 9) == {"AB", "C"}


def test_the_first_of_a_co_location_group_decides_and_updates_come_last():
    # A step: parameters P and Q, forward F, backward G, updates U and V that nothing waits for.
    tensors = [("P", ["F"], 100), ("Q", ["F"], 100), ("F", ["G"], 8), ("G", ["U", "V"], 8)]
    keys = {"P": "p", "U": "p", "Q": "q", "V": "q"}
    made = graph(dict.fromkeys("PQFGUV", 1.0), tensors, colocation=keys)
    problem = Problem(made, cluster())
    assert clusters_of(problem, 9) == {"PQFGUV"}
    # With R = 3 the updates are behind the cluster of their parameters: one operator, tied to it.
    assert clusters_of(problem, 3) == {"PQF", "G", "UV"}
    small, _ = optimal_operation_fusion(problem, 3, ALL_MEMORY)
    tied = dict(zip(small.graph.ids, small.graph.colocation.tolist(), strict=True))
    assert tied["P"] == tied["U"] >= 0 > tied["G"]
    # With R = 2 P and Q are apart, and so are their updates.
    assert clusters_of(problem, 2) == {"P", "QF", "G", "U", "V"}


def test_the_bytes_of_a_group_count_where_its_first_operator_is():
    tensors = [("P", ["F"], 100), ("F", ["G"], 8), ("G", ["U"], 8)]
    weights = {"P": 10, "U": 30, "F": 10, "G": 10}
    made = graph(dict.fromkeys("PFGU", 1.0), tensors, weight_bytes=weights,
                 colocation={"P": "p", "U": "p"})  # fmt: skip
    problem = Problem(made, cluster(memory=100))
    # P with U's bytes has 40, with F 50.
    assert clusters_of(problem, 3, 0.5) == {"PF", "G", "U"}
    assert clusters_of(problem, 3, 0.49) == {"P", "FG", "U"}


def test_a_follower_that_others_wait_for_cuts_the_order():
    # B shares A's device; the path goes A, X, B, Y, and R = 2 cannot hold A, X and B.
    chain = [("A", ["X"], 8), ("X", ["B"], 8), ("B", ["Y"], 8)]
    made = graph(dict.fromkeys("AXBY", 1.0), chain, colocation={"A": "k", "B": "k"})
    problem = Problem(made, cluster())
    assert clusters_of(problem, 2) == {"AX", "B", "Y"}
    assert clusters_of(problem, 3) == {"AXB", "Y"}


def test_a_cluster_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        optimal_operation_fusion(Problem(FORK, cluster()), 0, ALL_MEMORY)


@settings(max_examples=examples(60), deadline=None)
@given(graphs(largest=9), st.integers(1, 5), st.sampled_from([1.0, 0.15]))
def test_no_other_cut_of_the_order_sends_less(made, most_operators, memory_part):
    """Compares with all cuts of the CPD-TOPO order within R and M, without co-location."""
    free = replace(made, colocation=np.full(made.operator_count, -1))
    problem = Problem(free, cluster(memory=1_000_000))
    order = cpd_topo(problem).tolist()
    found = clusters_of(Problem(replace(free, ids=tuple(map(chr, range(65, 65 + len(order))))),
                                problem.cluster), most_operators, memory_part)  # fmt: skip
    label = {ord(name) - 65: one for one in found for name in one}
    edges = list(zip(*(column.tolist() for column in transfer_seconds(problem)), strict=True))

    def sent(cluster_of):
        return sum(cost for i, j, cost in edges if cluster_of[i] != cluster_of[j])

    held = operator_bytes(free)
    best = np.inf
    for cuts in itertools.product([False, True], repeat=len(order) - 1):
        number = dict(zip(order, itertools.accumulate((0, *cuts)), strict=True))
        members = [[i for i in order if number[i] == k] for k in set(number.values())]
        if all(
            len(m) == 1
            or (len(m) <= most_operators and held[m].sum() <= int(memory_part * 1_000_000))
            for m in members
        ):
            best = min(best, sent(number))
    assert sent(label) == pytest.approx(best)
    # A cluster's operators follow one another in the order.
    assert len(found) == 1 + sum(label[a] != label[b] for a, b in itertools.pairwise(order))


def test_fusion_cuts_the_ccr_of_a_training_graph():
    made = layered_training_graph(1500, seed=0)
    made = made.with_seconds({"cpu": 1e-6 + made.flops / 1e13})
    row = reduction_report(Problem(made, cluster(4, (1e10,))), "celeritas")
    assert row.ccr_after < 0.5 * row.ccr_before
    assert row.operators_after < 0.1 * row.operators_before
    same = reduction_report(Problem(made, cluster(4, (1e10,))), "none")
    assert same.ccr_after == same.ccr_before == row.ccr_before
