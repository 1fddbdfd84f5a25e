"""How a time limit is divided: what is kept for the check, and what reading took before."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence

import pytest

from placewire.optimizer.bounds.quick import proven
from placewire.optimizer.check.check import check
from placewire.optimizer.collector import collector_paused
from placewire.optimizer.commands.time_left import time_left
from placewire.optimizer.engines import auto, place
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.scoring import Scored
from placewire.optimizer.engines.search import Search
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.problem import Problem, SolveSettings
from tests.optimizer.engines.test_grids import WEIGHT, accumulated, servers
from tests.optimizer.engines.test_piece_search import small


@pytest.fixture
def problem() -> Problem:
    return Problem(accumulated(4), servers("cpu", "cpu"), sharing="job")


def test_a_large_graph_keeps_what_its_bounds_took_several_times(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_MEASURED_FROM", 0)
    assert place.closing_seconds(problem, 60.0, 2.0) == 6.0
    assert place.closing_seconds(problem, 60.0, 50.0) == pytest.approx(24.0)


def test_a_smaller_graph_keeps_the_same_on_every_machine(problem: Problem) -> None:
    kept = {place.closing_seconds(problem, 60.0, took) for took in (0.1, 2.0, 50.0)}
    assert kept == {2.5e-4 * problem.graph.operator_count}


def test_a_bound_that_is_known_already_still_counts_as_long_as_it_took(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the choice among variants, which bounds them all."""
    monkeypatch.setattr(place, "_MEASURED_FROM", 0)
    took = proven(problem).seconds
    kept: list[float] = []

    def noted(seen: Problem, limit: float, seconds: float) -> float:
        kept.append(seconds)
        return 0.0

    monkeypatch.setattr(place, "closing_seconds", noted)
    place.placed(problem, "auto", SolveSettings(moves=50, gap=0.0))
    assert kept and set(kept) == {took}


@pytest.mark.parametrize("memory", [10**12, 4 * WEIGHT])
def test_a_step_of_very_many_operators_is_placed_by_whole_pieces_where_a_start_fits(
    monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    monkeypatch.setattr(auto, "_WHOLE_PIECES_FROM", 0)
    searched: list[Problem] = []

    class Noted(Search):
        def run(self, starts: Sequence[Found]) -> Scored:
            searched.append(self.problem)
            return super().run(starts)

    monkeypatch.setattr(auto, "Search", Noted)
    on = small(servers("cpu", "cpu", "cpu"), memory)
    problem = Problem(accumulated(4, weights=8), on, sharing="job")
    placement = place.place(problem, "auto", SolveSettings(moves=400, gap=0.0))
    assert not check(problem.graph, placement)
    alone = best_single(problem)
    assert alone is None or placement.step_seconds < alone[1]
    assert not searched


def test_reading_counts_but_a_search_has_half_of_the_limit() -> None:
    now = time.monotonic()
    assert 30.0 < time_left(60.0, now - 10.0) <= 50.0
    assert time_left(60.0, now - 1_000.0) == 30.0


def test_the_collector_is_as_before_also_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), collector_paused():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    with collector_paused(), collector_paused():
        pass
    assert gc.isenabled()


def test_the_collector_is_on_again_after_pauses_of_several_threads() -> None:
    """The one that begins first ends first."""
    first, second = threading.Event(), threading.Event()

    def begins_second() -> None:
        first.wait()
        with collector_paused():
            second.set()
            ended.wait()

    ended = threading.Event()
    other = threading.Thread(target=begins_second)
    other.start()
    with collector_paused():
        first.set()
        second.wait()
    assert not gc.isenabled(), "the other thread still pauses it"
    ended.set()
    other.join()
    assert gc.isenabled()
