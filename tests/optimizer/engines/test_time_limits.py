"""How a time limit is divided: what is kept for the check, and what reading took before."""

from __future__ import annotations

import gc
import time

import pytest

from placewire.optimizer.collector import collector_paused
from placewire.optimizer.commands.time_left import time_left
from placewire.optimizer.engines import place
from placewire.optimizer.problem import Problem
from tests.optimizer.engines.test_grids import accumulated, servers


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
