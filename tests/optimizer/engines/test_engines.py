"""Engines through place(): never worse than one device, within memory, repeatable, near-optimal."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewire.optimizer.check.check import check
from placewire.optimizer.engines import single
from placewire.optimizer.engines.best_sharing import place_under_best_sharing, solution_of
from placewire.optimizer.engines.blocks import repeated_blocks
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.engines.neighbourhood import make_neighbourhood
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.solution import TIE
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.kernels.graphs.construct import earliest, take
from placewire.optimizer.names import SharingName
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.simulation.simulate import simulate
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, clusters, graph, graphs, layered

QUICK = SolveSettings(gap=0.0, moves=3000, seed=7)


@pytest.mark.parametrize("sharing", ["strict", "even", "unshaped"])
@pytest.mark.parametrize("model", ["contended", "thesis"])
def test_auto_distributes_what_gains_by_it(sharing, model):
    # Three independent branches over three servers with fast links: nearly three times as fast.
    problem = Problem(layered(3, 3), cluster(3, (8e7, 8e7), latency=1e-4), sharing, model)
    placement = place(problem, "auto", QUICK)
    assert check(problem.graph, placement) == ()
    assert placement.single_device_seconds is not None
    assert placement.step_seconds < 0.5 * placement.single_device_seconds
    assert placement.bound_seconds <= placement.step_seconds
    assert placement.gap == pytest.approx(1 - placement.bound_seconds / placement.step_seconds)
    assert bool(placement.rates_bits_per_second) == (
        sharing == "even" or (sharing == "strict" and bool(placement.server_pairs))
    )


def test_auto_stays_on_one_device_when_links_are_slow():
    problem = Problem(layered(3, 1), cluster(3, (8e3,), latency=0.5))
    placement = place(problem, "auto", QUICK)
    assert len(placement.devices_used) == 1
    assert placement.messages == ()
    assert placement.step_seconds == placement.single_device_seconds


def test_heft_alone_may_be_worse_than_one_device_and_auto_is_not():
    made = graph(
        {"A": 0.01, "B": 0.1, "C": 0.1, "D": 0.01},
        [("A", ["B"], 300_000), ("A", ["C"], 300_000), ("B", ["D"], 900), ("C", ["D"], 900)],
    )
    problem = Problem(made, cluster(2, latency=0.0))
    placement = place(problem, "auto", QUICK)
    assert placement.step_seconds <= 0.22 + 1e-9


def brute_force(problem) -> float:
    """The least step over all placements and priorities, even sharing."""
    n = problem.graph.operator_count
    best = np.inf
    for device in itertools.product(range(len(problem.cluster.devices)), repeat=n):
        for priority in itertools.permutations(range(n)):
            timeline = simulate(problem, np.array(device), np.array(priority, dtype=float))
            best = min(best, timeline.step_seconds)
    return best


@pytest.mark.parametrize("sharing", ["even", "unshaped"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_annealing_finds_the_optimum_of_tiny_graphs(sharing, seed):
    generator = np.random.default_rng(seed)
    costs = {f"o{i}": float(generator.integers(1, 9)) for i in range(5)}
    edges = [(0, 2, 100_000), (0, 3, 700_000), (1, 3, 90), (1, 4, 2_000_000), (2, 4, 0)]
    made = graph(costs, [(f"o{i}", [f"o{j}"], size) for i, j, size in edges])
    problem = Problem(made, cluster(2, latency=0.1), sharing)
    placement = place(problem, "auto", QUICK)
    assert placement.step_seconds <= brute_force(problem) * (1 + TIE)


def test_the_same_seed_and_moves_give_the_same_placement():
    problem = Problem(layered(3, 2), cluster(3, (8e6, 8e6), latency=1e-3))
    first, second = (place(problem, "auto", QUICK) for _ in range(2))
    neutral: dict[str, Any] = {"wall_seconds": {}}
    assert first.model_copy(update=neutral) == second.model_copy(update=neutral)


def test_a_model_that_no_device_can_hold_is_spread():
    # 8 layers of 1 MB over 4 devices of 2.4 MB: weights alone fill 2 MB of each.
    made = layered(4, 2, weight=1_000_000)
    where = cluster(4, (8e6, 8e6), memory=2_400_000, latency=1e-3)
    problem = Problem(made, where)
    with pytest.raises(InfeasibleError, match=r"one device needs .* MiB"):
        place(problem, "single", QUICK)
    for seed in (0, 1, 2):
        placement = place(problem, "auto", SolveSettings(gap=0.0, moves=3000, seed=seed))
        assert placement.single_device_seconds is None
        assert len(placement.devices_used) == 4
        assert check(made, placement) == ()


def test_what_fits_nowhere_is_refused_with_the_reason():
    made = layered(4, 2, weight=1_000_000)
    with pytest.raises(InfeasibleError, match=r"hold 7\.6 MiB"):
        place(Problem(made, cluster(2, memory=2_400_000)), "auto", QUICK)


def test_a_large_graph_is_reduced_and_the_placement_names_every_operator():
    # Four chains of 100: each fuses into one operator, and the chains run side by side.
    made = graph(
        {f"o{c}.{k}": 0.01 for c in range(4) for k in range(100)},
        [(f"o{c}.{k}", [f"o{c}.{k + 1}"], 4000) for c in range(4) for k in range(99)],
    )
    problem = Problem(made, cluster(4, (8e6,), latency=1e-3))
    placement = place(problem, "auto", QUICK)
    assert "400 -> 4" in placement.reduction
    assert set(placement.operators) == set(made.ids)
    assert placement.step_seconds == pytest.approx(1.0)


def test_operators_stay_off_devices_that_cannot_run_them():
    rows = [
        OperatorRow("A", "op", {"gpu": 1.0, "cpu": 30.0}),
        OperatorRow("B", "op", {"cpu": 1.0}),
        OperatorRow("C", "op", {"gpu": 1.0}),
    ]
    tensors = [TensorRow("A", ("B",), 100), TensorRow("B", ("C",), 100)]
    problem = Problem(build_graph(rows, tensors), cluster(2, types=["gpu", "cpu"]))
    for engine in ("heft", "auto"):
        placement = place(problem, engine, QUICK)
        assert placement.operators == {"A": "s1/0", "B": "s2/0", "C": "s1/0"}
    with pytest.raises(InfeasibleError, match="times for every operator"):
        place(problem, "single", QUICK)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_auto_is_never_worse_than_one_device(data):
    sharing = data.draw(st.sampled_from(["strict", "even", "unshaped"]))
    problem = Problem(data.draw(graphs()), data.draw(clusters()), sharing)
    placement = place(problem, "auto", SolveSettings(gap=0.0, moves=300))
    assert placement.single_device_seconds is not None
    assert placement.step_seconds <= placement.single_device_seconds


@settings(max_examples=examples(40), deadline=None)
@given(graphs(largest=12), clusters())
def test_moves_never_separate_a_group(made, where):
    neighbourhood = make_neighbourhood(Problem(made, where))
    for low, high in itertools.pairwise(neighbourhood.start.tolist()):
        moved = set(neighbourhood.members[low:high].tolist())
        keys = {int(made.colocation[i]) for i in moved} - {-1}
        assert set(np.flatnonzero(np.isin(made.colocation, list(keys))).tolist()) <= moved


def test_heft_fills_gaps():
    """Topcuoglu's insertion: a late-ranked short operator goes before a waiting long one."""
    starts, ends = np.zeros(4), np.zeros(4)
    count = take(starts, ends, 0, 0, 0.0, 2.0)
    count = take(starts, ends, 0, count, 5.0, 2.0)
    assert earliest(starts, ends, 0, count, 1.0, 3.0) == 2.0
    assert earliest(starts, ends, 0, count, 1.0, 3.5) == 7.0
    assert earliest(starts, ends, 0, count, 3.0, 2.0) == 3.0
    assert take(starts, ends, 0, count, 2.0, 3.0) == 1  # joined with both
    assert (starts[0], ends[0]) == (0.0, 7.0)


def test_unknown_names_are_refused():
    problem = Problem(layered(1, 1), cluster())
    with pytest.raises(ValueError, match=r"unknown engine 'magic'; accepted: auto, .*single"):
        place(problem, "magic", QUICK)
    assert ENGINES.load("single").solve is single.solve


def test_progress_is_reported_with_a_falling_incumbent():
    seen: list[Any] = []
    place(Problem(layered(3, 3), cluster(3, (8e7,))), "auto", QUICK, progress=seen.append)
    incumbents = [p.incumbent_seconds for p in seen]
    assert len(seen) > 3
    assert incumbents == sorted(incumbents, reverse=True)
    assert seen[-1].moves > 0
    assert all(p.bound_seconds <= p.incumbent_seconds for p in seen)


def test_an_empty_graph_is_placed():
    placement = place(Problem(graph({}, []), cluster(2)), "auto", QUICK)
    assert placement.operators == {} and placement.step_seconds == 0.0


def test_disconnected_parts_are_all_placed_and_spread():
    made = graph({f"{c}{k}": 0.1 for c in "ab" for k in range(3)}, [])
    placement = place(Problem(made, cluster(2)), "auto", QUICK)
    assert set(placement.operators) == set(made.ids)
    assert placement.step_seconds == pytest.approx(0.3)


@pytest.mark.thorough
def test_a_time_limit_is_kept_and_never_worse_than_the_starts():
    problem = Problem(layered(40, 4), cluster(4, (8e6, 8e6), latency=1e-3))
    place(problem, "auto", SolveSettings(gap=0.0, moves=200))  # compiles
    placement = place(problem, "auto", SolveSettings(gap=0.0, time_limit_seconds=3.0))
    started = place(problem, "heft", QUICK)
    hurried = place(problem, "auto", SolveSettings(gap=0.0, time_limit_seconds=0.05))
    assert placement.single_device_seconds is not None
    assert placement.step_seconds <= placement.single_device_seconds
    assert placement.step_seconds <= started.step_seconds * (1 + 1e-9)
    assert hurried.step_seconds <= started.step_seconds * (1 + 1e-9)


def test_layers_are_found_as_blocks_in_their_order():
    made = layered(12, 1, spread=0.0)
    table = repeated_blocks(made)
    assert table.shape[1] >= 8
    assert len(set(table.ravel().tolist())) == table.size
    layer = np.array([[int(made.ids[i][1:].split(".")[0]) for i in row] for row in table])
    # Forward and backward positions count the layers the same way, all but the ends of a model.
    assert (np.diff(layer, axis=1) == 1).mean() > 0.9
    assert repeated_blocks(layered(12, 1)).size == 0  # no two layers cost the same


def test_measured_blocks_are_alike_by_their_signatures_whose_operands_have_other_names():
    measured = layered(12, 1)
    said = tuple(f"float32[8] (%{name}, 1)" for name in measured.ids)
    table = repeated_blocks(dataclasses.replace(measured, signatures=said))
    assert table.shape[1] >= 8


def test_the_best_sharing_is_taken_and_the_first_of_equals():
    problem = Problem(layered(3, 3), cluster(3, (8e6, 8e6), latency=1e-4))
    names: tuple[SharingName, ...] = ("even", "strict", "unshaped")
    settings = SolveSettings(gap=0.0, moves=6000, seed=7)
    best, every = place_under_best_sharing(problem, names, "auto", settings)
    assert [p.sharing for p in every] == list(names)
    assert all(check(problem.graph, p) == () for p in every)
    least = min(p.step_seconds for p in every)
    assert best == next(p for p in every if p.step_seconds <= least * (1 + TIE))
    again, _ = place_under_best_sharing(problem, names, "auto", settings)
    assert again.operators == best.operators and again.step_seconds == best.step_seconds


def test_one_sharing_starts_from_what_another_found():
    """Under even sharing a search without moves knows only its starts; the other's is better."""
    problem = Problem(layered(3, 3), cluster(3, (8e7, 8e7), latency=1e-4), "even")
    good = place(problem, "auto", QUICK)
    start = solution_of(problem, good)
    shared = dataclasses.replace(problem, sharing="unshaped")
    tried = place(shared, "auto", SolveSettings(gap=0.0, moves=1), starts=[start])
    assert tried.step_seconds <= good.step_seconds * 1.05
    with pytest.raises(ValueError, match="at least one sharing"):
        place_under_best_sharing(problem, (), "auto", QUICK)
