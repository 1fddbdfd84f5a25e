"""Tests linear clustering, DSC and METIS: examples worked by hand, and properties that hold by
construction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.check.check import check
from placewire.optimizer.engines.device_capacity import DeviceCapacities
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import EngineRefusedError
from placewire.optimizer.engines.units import (
    downward_rank,
    mean_seconds,
    typical_transfer_seconds,
    unit_of_operator,
    unit_sums,
    upward_rank,
)
from placewire.optimizer.problem import InfeasibleError, SolveSettings
from placewire.optimizer.published.engines import dsc, linear_clustering, metis
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.engines.shared.guided_load_balancing import balanced
from tests.drawn_examples import examples
from tests.optimizer.published.published_cases import SECOND, alike, printed, small_problems

SETTINGS = SolveSettings(time_limit_seconds=600.0)
FEW = settings(max_examples=examples(40), deadline=None)


def groups(problem, cluster: np.ndarray) -> set[str]:
    names = np.array(problem.graph.ids)
    return {"".join(sorted(names[cluster == k].tolist())) for k in set(cluster.tolist())}


def reached(problem) -> np.ndarray:
    """bool[n, n]: whether a path leads from operator i to operator j."""
    n = problem.graph.operator_count
    found = np.zeros((n, n), dtype=bool)
    source, target, _ = problem.graph.edges
    for i in problem.graph.topological_order[::-1].tolist():
        for j in target[source == i].tolist():
            found[i] |= found[j]
            found[i, j] = True
    return found


# --- linear clustering ----------------------------------------------------------------------------


def test_linear_clustering_takes_critical_paths():
    """A 1, B 5, C 2, D 1, E 4; A to B and C, both to D, C to E; transfers of 1.
    Longest: A B D = 1 + 1 + 5 + 1 + 1 = 9, and A C E = 1 + 1 + 2 + 1 + 4 = 9: a tie, in which the
    path keeps the successor that it found first, B. What is left is C E = 2 + 1 + 4 = 7."""
    costs = {"A": 1.0, "B": 5.0, "C": 2.0, "D": 1.0, "E": 4.0}
    edges = dict.fromkeys([("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), ("C", "E")], 1.0)
    problem = alike(costs, edges, 2)
    cluster = linear_clustering.linear_clusters(problem, deadline("", SETTINGS))
    assert groups(problem, cluster) == {"ABD", "CE"}
    # Guided load balancing: ABD starts at 0 and goes to 0; CE at 1 + 1 = 2, to the empty one.
    device = linear_clustering.solve(problem, SETTINGS).device
    assert dict(zip(problem.graph.ids, device.tolist(), strict=True)) == {
        "A": 0, "B": 0, "D": 0, "C": 1, "E": 1,
    }  # fmt: skip


@FEW
@given(small_problems(largest=12))
def test_linear_clusters_are_linear(problem):
    """Any two operators of one cluster have a path between them."""
    cluster = linear_clustering.linear_clusters(problem, deadline("", SETTINGS))
    path = reached(problem)
    for k in set(cluster.tolist()):
        for i, j in itertools.combinations(np.flatnonzero(cluster == k).tolist(), 2):
            assert path[i, j] or path[j, i]
    # And the first one is a critical path of the graph.
    transfer = typical_transfer_seconds(problem)
    through = downward_rank(problem, transfer) + upward_rank(problem, transfer)
    assert through[cluster == 0] == pytest.approx(through.max(initial=0.0))


def test_paths_are_taken_in_pieces_of_the_same_result(monkeypatch):
    rows = {f"o{k}": 1.0 + k for k in range(9)}
    problem = alike(rows, {(f"o{k}", f"o{k + 2}"): 1.0 for k in range(7)}, 2)
    whole = linear_clustering.linear_clusters(problem, deadline("", SETTINGS))
    monkeypatch.setattr(linear_clustering, "_AT_ONCE", 1)
    assert (linear_clustering.linear_clusters(problem, deadline("", SETTINGS)) == whole).all()


# --- DSC ------------------------------------------------------------------------------------------


def fork(children: list[float], transfer: float):
    names = {f"c{k}": cost for k, cost in enumerate(children)}
    return alike({"r": 1.0, **names}, {("r", name): transfer for name in names}, 2)


def join(parents: list[float], transfer: float):
    names = {f"p{k}": cost for k, cost in enumerate(parents)}
    return alike({**names, "x": 1.0}, {(name, "x"): transfer for name in names}, 2)


def parallel_time(problem, found: dsc.Clusters) -> float:
    return float((found.start + mean_seconds(problem)).max(initial=0.0))


def test_dsc_on_a_fork():
    """r 1, two children of 2. With transfers of 3: the first joins r's cluster, where it starts at
    1 rather than 1 + 3; the second as well, at 3 rather than 4: 5 in all. With transfers of 1 the
    second would start there at 3, alone at 2: two clusters, 4 in all."""
    slow, quick = fork([2.0, 2.0], 3.0), fork([2.0, 2.0], 1.0)
    found = dsc.dominant_sequence_clusters(slow, deadline("dsc", SETTINGS))
    assert groups(slow, found.cluster) == {"c0c1r"} and parallel_time(slow, found) == 5.0
    found = dsc.dominant_sequence_clusters(quick, deadline("dsc", SETTINGS))
    assert groups(quick, found.cluster) == {"c0r", "c1"} and parallel_time(quick, found) == 4.0


def test_dsc_on_a_join():
    """Parents of 3 and 2, both 4 away from x: alone x would start at 7. In the cluster of the first
    it waits for the second until 6; with the second moved there, behind the first, until 5."""
    problem = join([3.0, 2.0], 4.0)
    found = dsc.dominant_sequence_clusters(problem, deadline("dsc", SETTINGS))
    assert groups(problem, found.cluster) == {"p0p1x"}
    assert parallel_time(problem, found) == 6.0


def test_a_dominant_sequence_is_not_hindered():
    """P 1 leads to x (2, transfer 2) and, with Q (6), to y (9): y's path, 1 + 8 + 9 = 18 by P, is
    longer than x's, 1 + 2 + 2, and y is partly free when P and x are examined, since Q is not (its
    own path, 6 + 1 + 9 = 16, is shorter). x may not take P's cluster, at whose end y could start
    then; y gets there when Q is done: max(1, 6 + 1) = 7, not 1 + 8."""
    problem = alike(
        {"P": 1.0, "Q": 6.0, "x": 2.0, "y": 9.0},
        {("P", "x"): 2.0, ("P", "y"): 8.0, ("Q", "y"): 1.0},
        2,
    )
    found = dsc.dominant_sequence_clusters(problem, deadline("dsc", SETTINGS))
    assert groups(problem, found.cluster) == {"Py", "Q", "x"}
    assert parallel_time(problem, found) == 16.0


@FEW
@given(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=5), st.sampled_from([1, 3]))
def test_dsc_is_optimal_on_forks_and_joins(costs, transfer):
    """Theorems of the paper. Some children (parents) share a cluster with the root (the end), the
    others are alone: the least of all such choices."""
    for problem in (fork(costs, float(transfer)), join(costs, float(transfer))):
        found = dsc.dominant_sequence_clusters(problem, deadline("dsc", SETTINGS))
        best = np.inf
        for together in itertools.product([True, False], repeat=len(costs)):
            inside = sum(c for c, t in zip(costs, together, strict=True) if t)
            apart = max(
                (c + transfer for c, t in zip(costs, together, strict=True) if not t), default=0.0
            )
            best = min(best, 1.0 + max(inside, apart))
        assert parallel_time(problem, found) == pytest.approx(best)


@FEW
@given(small_problems(largest=12))
def test_dsc_never_lengthens_the_parallel_time(problem):
    """Every operator in a cluster of its own takes the critical path; a step is only taken where
    the operator starts earlier by it. Starts keep to the clusters' own order and the transfers."""
    transfer = typical_transfer_seconds(problem)
    found = dsc.dominant_sequence_clusters(problem, deadline("dsc", SETTINGS))
    alone = upward_rank(problem, transfer).max(initial=0.0)
    assert parallel_time(problem, found) <= alone * (1 + 1e-9)
    ends = found.start + mean_seconds(problem)
    for i, j, e in zip(*problem.graph.edges, strict=True):
        took = transfer[e] if found.cluster[i] != found.cluster[j] else 0.0
        assert found.start[j] >= ends[i] + took - 1e-9
    for k in set(found.cluster.tolist()):
        mine = np.flatnonzero(found.cluster == k)
        mine = mine[np.lexsort((ends[mine], found.start[mine]))]
        assert (ends[mine[:-1]] <= found.start[mine[1:]] + 1e-9).all()


def test_clusters_go_to_the_least_loaded_device_with_room():
    """Clusters of 6, 3 and 2 s, in the order of their starts: devices 0, 1, and 1 again, 3 < 6.
    With room for one operator each, the third cluster finds none."""
    problem = alike({"a": 6.0, "b": 3.0, "c": 2.0}, {}, 2, weight_bytes=dict.fromkeys("abc", 10))
    cluster, start = np.arange(3), np.array([0.0, 1.0, 2.0])
    capacities = DeviceCapacities(problem, count_activations=True)
    device = balanced(problem, capacities, cluster, start)
    assert device is not None and device.tolist() == [0, 1, 1]
    tight = alike({"a": 6.0, "b": 3.0, "c": 2.0}, {}, 2, weight_bytes=dict.fromkeys("abc", 10),
                  memory=19)  # fmt: skip
    assert balanced(tight, DeviceCapacities(tight, count_activations=True), cluster, start) is None
    for engine in (dsc, linear_clustering):
        with pytest.raises(InfeasibleError, match="found no device with room"):
            engine.solve(tight, SETTINGS)


# --- METIS ----------------------------------------------------------------------------------------


def two_cliques(bridge: float = 0.5):
    names = [f"{c}{k}" for c in "ab" for k in range(4)]
    edges = {
        (f"{c}{i}", f"{c}{j}"): 5.0 for c in "ab" for i, j in itertools.combinations(range(4), 2)
    }
    return alike(dict.fromkeys(names, 1.0), {**edges, ("a3", "b0"): bridge}, 2)


def test_metis_cuts_the_cheapest_edge_between_equal_parts():
    """Two cliques of four operators of 1 s, joined by one edge: four on each side cut that edge
    only, half a second against at least 3 x 5 for any other halves."""
    device = metis.solve(two_cliques(), SETTINGS).device
    assert len(set(device[:4].tolist())) == 1 and len(set(device[4:].tolist())) == 1
    assert device[0] != device[4]


def test_metis_weighs_both_directions_of_an_edge_as_one():
    problem = two_cliques()
    start, other, size = metis.adjacency(problem, unit_of_operator(problem))
    rows = np.repeat(np.arange(8), np.diff(start))
    weight = dict(zip(zip(rows.tolist(), other.tolist(), strict=True), size.tolist(), strict=True))
    assert all(weight[j, i] == weight[i, j] for i, j in weight)
    assert weight[3, 4] == pytest.approx(0.5) and len(weight) == 26
    assert SECOND == 1_000_000


@pytest.mark.parametrize("devices", [2, 3, 5])
def test_metis_parts_are_balanced(devices):
    """Three per cent, METIS' own tolerance, and no more than one operator's weight on top."""
    generator = np.random.default_rng(3)
    costs = {f"o{k}": float(generator.uniform(0.5, 1.5)) for k in range(300)}
    edges = {
        (f"o{i}", f"o{j}"): float(generator.uniform(0.1, 1.0))
        for j in range(1, 300)
        for i in generator.choice(j, size=min(j, 2), replace=False).tolist()
    }
    problem = alike(costs, edges, devices)
    load = np.bincount(metis.solve(problem, SETTINGS).device, problem.seconds[:, 0], devices)
    assert (load <= 1.03 * load.mean() + 1.5).all()


def test_faster_devices_get_larger_parts():
    rows = {f"o{k}": (1.0, 3.0) for k in range(200)}
    problem = printed(rows, {(f"o{k}", f"o{k + 1}"): 1.0 for k in range(199)})
    assert metis.device_shares(problem) == pytest.approx([0.75, 0.25])
    count = np.bincount(metis.solve(problem, SETTINGS).device, minlength=2)
    assert count[0] == pytest.approx(150, abs=8)


@pytest.mark.hypothesis
def test_metis_keeps_groups_together_and_repeats_itself():
    @FEW
    @given(small_problems(largest=12))
    def holds(problem):
        device = metis.solve(problem, SETTINGS).device
        assert (device == metis.solve(problem, SETTINGS).device).all()
        for key in set(problem.graph.colocation[problem.graph.colocation >= 0].tolist()):
            assert len(set(device[problem.graph.colocation == key].tolist())) == 1
        placement = place(problem, "metis", SETTINGS)
        assert check(problem.graph, placement) == ()

    holds()
    problem = two_cliques()
    unit = unit_of_operator(problem)
    assert unit_sums(unit, problem.seconds[:, 0]).tolist() == [1.0] * 8


def test_metis_says_what_it_lacks(monkeypatch):
    problem = two_cliques()
    with monkeypatch.context() as without:
        without.setattr(metis, "find_spec", lambda name: None)
        with pytest.raises(EngineRefusedError, match=r"the package pymetis .*placewire\[metis\]"):
            place(problem, "metis", SETTINGS)
    half = {f"o{k}": (1.0, np.inf if k % 2 else 1.0) for k in range(8)}
    unlike = printed(half, {(f"o{k}", f"o{k + 1}"): 1.0 for k in range(7)})
    with pytest.raises(InfeasibleError, match="which cannot run it"):
        metis.solve(unlike, SETTINGS)
