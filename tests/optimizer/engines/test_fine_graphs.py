"""The search on graphs whose updates are written out as many small operators."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.engines import auto
from placewire.optimizer.engines.costing import Costing, Found
from placewire.optimizer.engines.levels import with_heavy_updates
from placewire.optimizer.engines.neighbourhood import make_neighbourhood
from placewire.optimizer.engines.place import place, placed
from placewire.optimizer.engines.reporting import Clock, Reporter
from placewire.optimizer.engines.scoring import Scored, score
from placewire.optimizer.engines.solution import Progress, Solution
from placewire.optimizer.graph.operator_graph import PARAMETER, OperatorGraph
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.reductions import written_updates as written_updates_module
from placewire.optimizer.reductions.written_updates import merge_updates, written_updates
from placewire.optimizer.simulation.simulate import recorded_priority, simulate
from tests.optimizer.peers.steps import captured, gpus

# A small model's operators take little more than their launch; so they are worth distributing.
SLOWER = 100.0


def problem_of(graph: OperatorGraph) -> Problem:
    slow = replace(graph, seconds=graph.seconds * SLOWER)
    return Problem(slow, gpus(4), sharing="strict", model="thesis")


def test_a_fine_graph_has_good_starts() -> None:
    """A search that begins with no operator of a whole update comes to 0.46 of one device."""
    problem = problem_of(captured("alexnet", 1, decompose=True))
    found = place(problem, "auto", SolveSettings(gap=0.0, moves=200))
    assert found.single_device_seconds is not None
    assert found.step_seconds < 0.38 * found.single_device_seconds


def test_what_the_search_of_a_reduced_graph_finds_is_reported_at_once() -> None:
    problem = problem_of(captured("alexnet", 1, decompose=True))
    said: list[Progress] = []
    moves = 6_000
    place(problem, "auto", SolveSettings(gap=0.0, moves=moves), progress=said.append)
    of_reduced = {one.incumbent_seconds for one in said if 0 < one.moves < moves // 2}
    assert len(of_reduced) > 1


def test_what_the_search_of_a_reduced_graph_finds_begins_the_next_one_by_its_own_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By rates that follow the traffic it may cost more than one device, and be tried too late."""
    problem, seen, improve = problem_of(captured("alexnet", 1, decompose=True)), [], auto.improve

    def noted(searched: Problem, settings: Any, progress: Any, starts: Sequence[Found],
              *others: Any) -> Solution:  # fmt: skip
        seen.append((searched, list(starts)))
        return improve(searched, settings, progress, starts, *others)

    monkeypatch.setattr(auto, "improve", noted)
    place(problem, "auto", SolveSettings(gap=0.0, moves=1_000))
    searched, (start,) = seen[-1]
    assert searched.graph is problem.graph
    scored = score(problem, start.solution, optimise_rates=False)
    assert start.cost == pytest.approx(scored.step_seconds, rel=1e-12)


def test_the_search_of_a_reduced_graph_ends_at_the_bound_of_that_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, improve = problem_of(captured("mlp", 1, decompose=True)), auto.improve
    merged, unmerge = merge_updates(problem)
    of_given, of_merged = lower_bound(problem).seconds, lower_bound(merged).seconds
    assert of_given != of_merged
    ends: list[float] = []

    def noted(searched: Problem, settings: Any, progress: Any, starts: Sequence[Found],
              until: float, bound_seconds: float, *others: Any) -> Solution:  # fmt: skip
        ends.append(bound_seconds)
        return improve(searched, settings, progress, starts, until, bound_seconds, *others)

    monkeypatch.setattr(auto, "improve", noted)
    clock = Clock()
    auto.search(
        problem, [lambda: (merged, unmerge)], SolveSettings(moves=2), np.inf, [],
        Reporter(None, clock), clock, of_given,
    )  # fmt: skip
    assert ends == [of_merged, of_given]


def test_heavy_updates_are_searched_in_parts_before_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of(captured("alexnet", 1, decompose=True))
    number, seconds = written_updates(problem.graph), problem.seconds[:, 0]
    took = [seconds[number == k].sum() / seconds.sum() for k in range(number.max() + 1)]
    limit = float(np.mean(sorted(took)[-2:]))
    monkeypatch.setattr(written_updates_module, "_HEAVY", limit)
    merged = merge_updates(problem)[0].graph.operator_count
    reduced = with_heavy_updates(problem, merged)
    assert reduced is not None
    small, undo = reduced
    count = small.graph.operator_count
    assert merged < count < problem.graph.operator_count
    home, _ = undo(np.arange(count), np.zeros(count))
    for k, part in enumerate(took):
        count_of_k = len(set(home[number == k].tolist()))
        assert count_of_k == ((number == k).sum() if part > limit else 1)


def test_what_is_searched_first_is_not_searched_again() -> None:
    fine, coarse = (problem_of(captured("alexnet", 1, decompose=d)) for d in (True, False))
    merged = merge_updates(fine)[0].graph.operator_count
    assert with_heavy_updates(coarse, coarse.graph.operator_count) is None
    assert with_heavy_updates(fine, merged - 1) is None


def test_one_move_takes_an_update_with_its_weight() -> None:
    problem = problem_of(captured("mlp", 1, decompose=True))
    graph, number = problem.graph, written_updates(problem.graph)
    found = make_neighbourhood(problem)
    sets = {
        frozenset(found.members[a:b].tolist())
        for a, b in zip(found.start[:-1], found.start[1:], strict=True)
    }
    for k in range(number.max() + 1):
        update = np.flatnonzero(number == k)
        keys = set(graph.colocation[update].tolist())
        weight = [i for i, kind in enumerate(graph.types) if kind == PARAMETER]
        weight = [i for i in weight if graph.colocation[i] in keys]
        assert len(weight) == 1 and frozenset([*update.tolist(), *weight]) in sets


def test_whole_pieces_keep_an_update_together() -> None:
    problem = problem_of(captured("mlp", 4, decompose=True))
    found = placed(problem, "auto", SolveSettings(gap=0.0, moves=2_000))
    (of_layout,) = (one for one in found.solutions if one.layout is not None)
    number = written_updates(problem.graph)
    homes = [set(of_layout.device[number == k].tolist()) for k in range(number.max() + 1)]
    assert all(len(one) == 1 for one in homes)
    assert found.placement.reduction.startswith("auto: ")


def without_room() -> tuple[Problem, Solution]:
    """A problem that does not fit on one device, and the solution with everything on one."""
    fine = captured("mlp", 1, decompose=True)
    wide = problem_of(fine)
    everything = on_one_device(wide)
    # No message is sent, and so no rate is needed.
    alone = simulate(replace(wide, sharing="unshaped"), everything.device, everything.priority)
    memory = int(0.6 * alone.peak_memory_bytes.max())
    return replace(wide, cluster=gpus(4, memory=memory)), everything


def on_one_device(problem: Problem) -> Solution:
    first = np.zeros(problem.graph.operator_count, dtype=np.int64)
    return Solution(first, recorded_priority(problem), None)


def test_where_no_given_start_fits_the_search_makes_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, everything = without_room()
    assert merge_updates(problem)[0] is not problem
    begun, improve = list[Found](), auto.improve

    def noted(searched: Problem, settings: Any, progress: Any, starts: Sequence[Found],
              *others: Any) -> Solution:  # fmt: skip
        begun.extend(starts)
        return improve(searched, settings, progress, starts, *others)

    monkeypatch.setattr(auto, "improve", noted)
    clock = Clock()
    auto.search(
        problem, [lambda: None], SolveSettings(moves=1), np.inf, [everything],
        Reporter(None, clock), clock, 0.0,
    )  # fmt: skip
    assert any(one.excess == 0.0 for one in begun)


def test_where_no_solution_of_merged_updates_fits_the_graph_as_given_is_asked() -> None:
    problem, _ = without_room()

    def find(given: Problem) -> list[Found]:
        if given is problem:
            return auto.costed_starts(given)
        return [Costing(given).cost(on_one_device(given))]

    assert any(one.excess == 0.0 for one in auto.of_merged(problem, find))


@pytest.mark.parametrize(("large", "times"), [(True, 3), (False, 6)])
def test_what_is_found_in_a_reduced_graph_takes_little_time_to_report(
    monkeypatch: pytest.MonkeyPatch, large: bool, times: int
) -> None:
    """A simulation takes one second here, and its report 20 s of rest."""
    problem, now, simulated = problem_of(captured("mlp", 1, decompose=True)), [0.0], list[float]()
    count = problem.graph.operator_count
    scored = score(problem, on_one_device(problem), optimise_rates=False)

    def one_second(*_: Any, **__: Any) -> Scored:
        simulated.append(now[0])
        now[0] += 1.0
        return scored

    merged, unmerge = merge_updates(problem)
    clock = Clock()
    monkeypatch.setattr(auto, "_REPORTS_RARELY_FROM", count - 1 if large else count)
    monkeypatch.setattr(auto, "score", one_second)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    report = auto._reporting(problem, unmerge, Reporter(None, clock), until=60.0)
    for at in (0.0, 10.0, 22.0, 30.0, 50.0, 70.0):
        now[0] = at
        report(on_one_device(merged))
    assert len(simulated) == times


def test_the_same_seed_and_moves_give_the_same_placement_on_a_machine_of_any_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second search is on one where an hour passes between two looks at the clock."""
    problem = problem_of(captured("alexnet", 1, decompose=True))
    settings = SolveSettings(gap=0.0, moves=3_000)
    first = place(problem, "auto", settings)
    hours = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: 3600.0 * next(hours))
    second = place(problem, "auto", settings)
    assert first.step_seconds < 0.5 * (first.single_device_seconds or 0.0)
    assert first.model_copy(update={"wall_seconds": second.wall_seconds}) == second
