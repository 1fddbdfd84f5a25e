"""The reductions of the thesis and QuickP: examples worked by hand after the thesis' figures, and
properties of every graph. The text has the situations of the figures, but not their numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.engines.place import place
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.comparison.reduction_report import (
    critical_path_seconds,
    reduction_report,
)
from placewire.optimizer.published.reductions.rank_colocation import (
    RankRates,
    best_successors,
    expand_groups,
    icc_rank_rates,
    rank_colocation,
    thesis_rank_rates,
)
from placewire.optimizer.published.reductions.thesis_and_quickp import (
    fuse_and_colocate,
    fused_within,
)
from placewire.optimizer.published.reductions.thresholds import Thresholds
from placewire.optimizer.reductions.chain import reduce_by_name
from placewire.optimizer.reductions.coarsen import reduce_to
from placewire.optimizer.reductions.contract import contract
from placewire.optimizer.reductions.fusion import fuse, fused_groups
from placewire.optimizer.reductions.merging import units_of
from placewire.optimizer.reductions.reduction import REDUCTIONS
from placewire.optimizer.reductions.refusals import ReductionRefusedError
from tests.drawn_examples import examples
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, described, graph, graphs
from tests.optimizer.groups import edges, together

NAMES = REDUCTIONS.names
SECOND = 1_000_000  # bytes that take a second between two servers of `cluster()`


def keys_of(problem, **groups):
    """keys_of(problem, u="AB"): int64[n] with one number for A and B, -1 elsewhere."""
    keys = np.full(problem.graph.operator_count, -1, dtype=np.int64)
    for number, members in enumerate(groups.values()):
        keys[[problem.graph.index_of[name] for name in members]] = number
    return keys


def test_figure_4_2_a_line_fuses_and_keeps_what_runs_beside_it():
    # B -> D is a straight line; C runs beside both, before and after.
    made = graph(dict.fromkeys("ABCDE", 9.0), edges("AB", "AC", "BD", "DE", "CE"))
    problem = Problem(made, cluster())
    assert together(problem, fused_groups(problem, alpha=1.0)) == {"A", "BD", "C", "E"}


def test_figure_4_2_b_an_edge_with_two_degrees_is_never_fused():
    # C has three successors and B two predecessors: C -> B stays, however light they are.
    light = {"A": 9.0, "B": 0.0, "C": 0.0, "D": 9.0, "F": 9.0, "X": 9.0}
    made = graph(light, edges("AB", "AX", "CB", "CD", "CF", "BX", "BD", "XF"))
    problem = Problem(made, cluster())
    for group in together(problem, fused_groups(problem, alpha=1.0)):
        assert not {"B", "C"} <= set(group)


@pytest.mark.parametrize(
    ("seconds", "pairs", "edge", "fuses", "loss"),
    [
        # (a) and (b): C and A run side by side in front of B; fusing C and B loses C's time.
        ({"A": 500, "C": 500, "B": 1}, ("AB", "CB"), "CB", False, 500),
        ({"A": 500, "C": 1, "B": 500}, ("AB", "CB"), "CB", True, 1),
        # (c) and (d) are the mirror image: F and G run behind E, and G waits for F where E and F
        # fuse.
        ({"E": 1, "F": 500, "G": 500}, ("EF", "EG"), "EF", False, 500),
        ({"E": 500, "F": 1, "G": 500}, ("EF", "EG"), "EF", True, 1),
    ],
)
def test_figure_4_4_the_heavy_end_decides_what_a_fusion_loses(seconds, pairs, edge, fuses, loss):
    """The end that has only this edge must be light. 500 and 1 are QuickP's microseconds for the
    same situations (its figure 4)."""
    problem = Problem(graph({k: float(s) for k, s in seconds.items()}, edges(*pairs)), cluster())
    ends = [problem.graph.index_of[name] for name in edge]
    fused, _ = contract(problem, np.where(np.isin(np.arange(3), ends), min(ends), np.arange(3)))
    assert critical_path_seconds(fused) - critical_path_seconds(problem) == loss
    merged = [set(group) for group in together(problem, fused_groups(problem, alpha=1.0))]
    assert any(set(edge) <= group for group in merged) == fuses


def test_figure_4_6_fusing_with_the_critical_successor_waits_for_those_outside():
    # A's successors are B, in its group, and C outside: C would wait for B in A+B.
    seconds = {"A": 1.0, "B": 3.0, "C": 1.0, "Z": 1.0}
    made = graph(seconds, edges("AB", "AC", "BZ", "CZ"))
    problem = Problem(made, cluster())
    group = keys_of(problem, u="AB")
    assert together(problem, fused_within(problem, group, alpha=2.0)) == {"A", "B", "C", "Z"}
    # It fuses where B is light, strictly: p_j < alpha …
    assert together(problem, fused_within(problem, group, alpha=3.0)) == {"A", "B", "C", "Z"}
    assert together(problem, fused_within(problem, group, alpha=3.1)) == {"AB", "C", "Z"}
    # … and where all successors of A are in the group.
    wider = keys_of(problem, u="ABC")
    assert together(problem, fused_within(problem, wider, alpha=0.0)) == {"AB", "C", "Z"}
    # Then A+B has the successor Z outside the group, so that C is not fused with it.
    whole = keys_of(problem, u="ABCZ")
    assert together(problem, fused_within(problem, whole, alpha=0.0)) == {"ABCZ"}


def test_fusion_within_a_group_minds_paths_outside_it():
    # A and C are one group, within which A -> C makes no cycle; through B outside it would.
    made = graph(dict.fromkeys("ABC", 1.0), edges("AB", "BC", "AC"))
    problem = Problem(made, cluster())
    group = keys_of(problem, u="AC")
    assert together(problem, fused_within(problem, group, alpha=9.0)) == {"A", "B", "C"}
    assert together(problem, fused_within(problem, keys_of(problem, u="ABC"), 9.0)) == {"ABC"}


FIGURE_4_7 = graph(
    {"A": 5.0, "X": 5.0, "B": 1.5, "D": 1.0, "E": 9.0, "F": 8.0, "G": 8.0},
    edges("AB", "XB", "AD", "BD", "BE", "DF", "DG", "XG", "EF"),
)


def test_figure_4_7_fusion_within_a_group_lets_algorithm_1_fuse_more():
    # D has two predecessors and two successors: Algorithm 1 cannot touch it.
    problem = Problem(FIGURE_4_7, cluster())
    alone = together(problem, fused_groups(problem, alpha=2.0))
    assert {"A", "B", "D"} <= alone
    # B is A's critical successor. Once A and B are one, D has a single predecessor.
    keys = rank_colocation(problem, thesis_rank_rates(problem.cluster))
    assert keys[FIGURE_4_7.index_of["A"]] == keys[FIGURE_4_7.index_of["B"]] >= 0
    small, _ = contract(problem, fused_within(problem, keys_of(problem, u="AB"), alpha=2.0))
    assert together(small, fused_groups(small, alpha=2.0)) & {"AD"}  # A now stands for A and B
    whole, _ = fuse_and_colocate(problem, Thresholds(2.0, 0.0))
    assert not {"B", "D"} & set(whole.graph.ids)


def test_figure_4_8_light_ungrouped_neighbours_join_a_group():
    # Group {C, D}. A and F are light neighbours; B is heavy; E is light, but only F's neighbour.
    seconds = {"A": 1.0, "B": 5.0, "C": 9.0, "D": 9.0, "E": 1.0, "F": 1.0}
    made = graph(seconds, edges("AC", "BC", "CD", "DF", "FE"))
    problem = Problem(made, cluster())
    keys = keys_of(problem, u="CD")
    assert together(problem, expand_groups(problem, keys, beta=2.0)) == {"ACDF"}
    # The delay must be strictly less than beta; an operator between two groups does not unite them.
    assert together(problem, expand_groups(problem, keys, beta=1.0)) == {"CD"}
    two = keys_of(problem, u="BC", v="FE")
    assert together(problem, expand_groups(problem, two, beta=99.0)) == {"ABCD", "EF"}


def test_an_operator_between_two_groups_joins_the_one_it_exchanges_most_with():
    tensors = [("A", ["B"], 8), ("C", ["D"], 8), ("B", ["X"], 100), ("X", ["C"], 200)]
    problem = Problem(graph(dict.fromkeys("ABCDX", 1.0), tensors), cluster())
    keys = keys_of(problem, u="AB", v="CD")
    assert together(problem, expand_groups(problem, keys, beta=2.0)) == {"AB", "CDX"}


def test_rank_4_1_by_hand():
    # r_C = 1 and r_B = 2; sending to B takes 1 s, to C 3 s: 2 + 1 < 1 + 3, so A goes with C. Over
    # fast links computing decides, and A goes with B. B and C, of at most one successor, choose
    # none.
    made = graph({"A": 1.0, "B": 2.0, "C": 1.0}, [("A", ["B"], SECOND), ("A", ["C"], 3 * SECOND)])
    problem = Problem(made, cluster())
    rates = thesis_rank_rates(problem.cluster)
    assert rates == RankRates(BYTE_PER_MICROSECOND, BYTE_PER_MICROSECOND)
    assert best_successors(problem, rates) == [2, -1, -1]
    assert best_successors(problem, RankRates(1e12, 1e12)) == [1, -1, -1]
    assert together(problem, rank_colocation(problem, rates)) == {"AC"}


def test_parallel_tensors_of_a_pair_add_up_in_the_rank():
    tensors = [("A", ["B"], 2 * SECOND), ("A", ["C"], SECOND), ("A", ["B", "C"], 0)]
    tensors += [("A", ["C"], SECOND), ("A", ["C"], SECOND)]
    problem = Problem(graph(dict.fromkeys("ABC", 1.0), tensors), cluster())
    assert best_successors(problem, thesis_rank_rates(problem.cluster)) == [2, -1, -1]


def test_quickp_7_ranks_inside_a_server_and_chooses_between_servers():
    # One server holds both devices (80 Mbit/s inside, NIC 8 Mbit/s): the rank of B, in front of
    # 5 s worth of NIC, is 1 + 0.5 + 1; chosen by the NIC, C with its 2 s is behind: 1 + 2 > 2.5.
    tensors = [("A", ["B", "C"], 0), ("A", ["C"], 2 * SECOND), ("B", ["D"], 5 * SECOND)]
    made = graph(dict.fromkeys("ABCD", 1.0), tensors)
    inside = Problem(made, cluster(1, devices=2))
    assert icc_rank_rates(inside.cluster) == RankRates(8e7, 8e6)
    assert best_successors(inside, icc_rank_rates(inside.cluster))[0] == 2
    # Over two servers both use the NIC's rate: 1 + 5 + 1 > 3.
    across = Problem(made, cluster(2))
    assert icc_rank_rates(across.cluster) == RankRates(8e6, 8e6)
    assert best_successors(across, icc_rank_rates(across.cluster))[0] == 1
    # The thesis has one rate.
    assert thesis_rank_rates(inside.cluster) == RankRates(8e7, 8e7)


def test_groups_are_the_weakly_connected_components_of_the_ties():
    # A and X both choose B, so that the three are one group; nobody chooses D or E.
    seconds = {"A": 1.0, "X": 1.0, "B": 5.0, "D": 1.0, "E": 1.0}
    problem = Problem(graph(seconds, edges("AB", "AD", "XB", "XE")), cluster())
    assert together(problem, rank_colocation(problem, thesis_rank_rates(problem.cluster))) == {
        "AXB"
    }


def test_a_group_that_meets_a_key_joins_it_and_no_tie_makes_two_keys_one():
    # A's critical successor is B, B's is C. Both ties meet a key; the tie of more bytes is kept.
    tensors = [("A", ["B"], 10), ("A", ["D"], 0), ("B", ["C"], 20), ("B", ["D"], 0)]
    seconds = {"A": 1.0, "B": 5.0, "C": 5.0, "D": 1.0, "P": 0.0, "Q": 0.0}
    made = graph(seconds, tensors, colocation={"A": "q", "Q": "q", "C": "p", "P": "p"})
    problem = Problem(made, cluster())
    rates = thesis_rank_rates(problem.cluster)
    assert together(problem, rank_colocation(problem, rates)) == {"AQ", "BCP"}
    free = graph(seconds, tensors, colocation={"C": "p", "P": "p"})
    assert together(problem, rank_colocation(Problem(free, cluster()), rates)) == {"ABCP"}


def test_ties_that_would_not_fit_are_left_out():
    seconds = {"A": 1.0, "B": 5.0, "D": 1.0}
    weights = {"A": 600, "B": 600, "D": 1}
    made = graph(seconds, edges("AB", "AD"), weight_bytes=weights)
    for memory, groups in ((1201, {"AB"}), (1200, set())):
        # With 1201 bytes the whole graph fits; with less, groups keep to an eighth of the device.
        problem = Problem(made, cluster(memory=memory))
        assert together(problem, rank_colocation(problem, RankRates(1e9, 1e9))) == groups


def test_ties_between_what_no_device_can_run_together_are_left_out():
    made = graph({"A": 1.0, "B": 5.0, "D": 1.0}, edges("AB", "AD"))
    seconds = np.array([[1.0, np.inf], [np.inf, 5.0], [1.0, 1.0]])
    made = replace(made, device_types=("cpu", "gpu"), seconds=seconds)
    problem = Problem(made, cluster(2, types=["cpu", "gpu"]))
    assert together(problem, rank_colocation(problem, RankRates(1e9, 1e9))) == set()


def test_quickp_fuses_below_the_90th_percentile_and_neither_iterates_nor_expands():
    # Nine of ten operators cost 1, so that alpha is 1 to 1.9, and figure 4.7's D stays, unlike in
    # the thesis.
    seconds = dict.fromkeys(FIGURE_4_7.ids, 1.0) | {"E": 10.0}
    made = FIGURE_4_7.with_seconds({"cpu": np.array([seconds[i] for i in FIGURE_4_7.ids])})
    small, _, words = reduce_by_name(Problem(made, cluster()), "icc")
    assert "D" in small.graph.ids
    assert words.startswith("icc: 7 -> ")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(25), deadline=None)
@given(graphs(largest=14), st.sampled_from([10**9, 400_000]))
def test_every_reduction_keeps_what_must_be_kept(name, made, memory):
    made = described(made)
    problem = Problem(made, cluster(3, memory=memory), "even")
    try:
        small, undo, _ = reduce_by_name(problem, name)
    except ReductionRefusedError:
        return
    count = small.graph.operator_count
    assert small.graph.seconds.sum() == pytest.approx(made.seconds.sum())
    assert small.graph.weight_bytes.sum() == made.weight_bytes.sum()
    assert small.graph.activation_bytes.sum() == made.activation_bytes.sum()
    check_undo(problem, small, undo, np.arange(count))
    # What the reduction tied fits a device; keys of the given graph may not.
    group, _ = undo(np.arange(count), np.zeros(count))
    units, before = units_of(small.graph.colocation), units_of(made.colocation)
    for unit in set(units.tolist()):
        members = np.flatnonzero(units[group] == unit)
        if len(set(before[members].tolist())) > 1:
            held = made.weight_bytes[members] + made.activation_bytes[members]
            assert held.sum() + made.workspace_bytes[members].max() <= memory


@settings(max_examples=examples(30), deadline=None)
@given(graphs(largest=14), st.integers(1, 6))
def test_coarsening_keeps_what_must_be_kept(made, target):
    problem = Problem(made, cluster(3), "even")
    small, undo = reduce_to(problem, target)
    assert small.graph.seconds.sum() == pytest.approx(made.seconds.sum())
    check_undo(problem, small, undo, np.arange(small.graph.operator_count))


def check_undo(problem, small, undo, labels):
    """Every operator gets a device, operators of one key get the same, and an order that the small
    graph can run is undone to one that the given graph can run."""
    made, count = problem.graph, len(labels)
    position = np.empty(count)
    position[small.graph.topological_order] = np.arange(count)
    group, priority = undo(labels, -position)
    assert group.shape == priority.shape == (made.operator_count,)
    assert set(group.tolist()) == set(range(count))
    source, target, _ = made.edges
    assert (priority[source] > priority[target]).all()
    assert len(set(priority.tolist())) == made.operator_count
    # With a device per key of the small graph, no key of the given graph is split.
    keys = small.graph.colocation
    device = np.where(keys >= 0, keys, count + labels)
    where, _ = undo(device, -position)
    for key in set(made.colocation[made.colocation >= 0].tolist()):
        assert len(set(where[made.colocation == key].tolist())) == 1


@pytest.mark.parametrize("name", NAMES)
def test_no_reduction_enters_the_bound(name):
    problem = Problem(described(FIGURE_4_7), cluster(2))
    placement = place(problem, "auto", SolveSettings(gap=0.0, moves=200), name)
    assert placement.bound_seconds == lower_bound(problem).seconds


def test_the_report_counts_groups_paths_and_thresholds():
    # Two parallel branches of 2 and 3 s between A and Z: the path is 1 + 3 + 1.
    made = graph({"A": 1.0, "B": 2.0, "C": 3.0, "Z": 1.0}, edges("AB", "AC", "BZ", "CZ"))
    problem = Problem(made, cluster())
    row = reduction_report(problem, "thesis")
    assert (row.operators_before, row.critical_path_before_seconds) == (4, 5.0)
    assert row.total_seconds == 7.0
    small, _, _ = reduce_by_name(problem, "thesis")
    assert row.operators_after == small.graph.operator_count
    assert row.critical_path_after_seconds >= 5.0
    whole = fuse(problem, alpha=9.0)[0]
    assert reduction_report(whole, "none").critical_path_after_seconds == 7.0


def test_a_target_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        reduce_to(Problem(graph({"A": 1.0}, []), cluster()), 0)
