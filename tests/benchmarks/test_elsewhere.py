"""Placements that were found in one setting, tried in another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import elsewhere
from benchmarks.engine.elsewhere import Setting, best_of_all
from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import cluster, graph
from tests.optimizer.check.checked_placements import placement_of

# Two operators of 1 s that a third of 1 s waits for; what they send takes 0.1 s at the fast rate
# and 10 s at the slow one.
FAST, SLOW = 80e6, 8e5
GRAPH = graph({"A": 1.0, "B": 1.0, "C": 1.0}, [("A", ["C"], 10**6), ("B", ["C"], 10**6)])
APART, TOGETHER = [0, 1, 0], [0, 0, 0]


def two(rate: float, *, background: float = 0.0, memory: int = 10**12) -> Cluster:
    made = cluster(2, (rate,), memory=memory)
    wanted = {"background_bits_per_second": background}
    first, second = made.servers
    first = first.model_copy(
        update={"nics": tuple(n.model_copy(update=wanted) for n in first.nics)}
    )
    return made.model_copy(update={"servers": (first, second)})


@pytest.mark.parametrize("sharing", ["job", "guarantee", "strict", "even", "unshaped"])
def test_each_setting_gets_the_placement_that_is_best_in_it(tmp_path: Path, sharing) -> None:
    """Each search found the better placement of the other one's setting."""
    settings = {rate: Setting(two(rate), sharing) for rate in (FAST, SLOW)}
    found = {
        rate: placement_of(Problem(GRAPH, two(rate), sharing), device)
        for rate, device in ((FAST, TOGETHER), (SLOW, APART))
    }
    assert found[FAST].step_seconds == pytest.approx(3.0)
    assert found[SLOW].step_seconds > 10.0
    best = best_of_all([GRAPH], found, settings, tmp_path)
    assert best[FAST].step_seconds == pytest.approx(2.1, rel=0.01)
    assert best[SLOW].step_seconds == pytest.approx(3.0)
    for rate, placement in best.items():
        assert placement.cluster == two(rate) and placement.sharing == sharing
        assert check(GRAPH, placement) == ()


def test_what_is_best_already_stays_as_it_is(tmp_path: Path) -> None:
    found = {
        rate: placement_of(Problem(GRAPH, two(rate), "job"), device)
        for rate, device in ((FAST, APART), (SLOW, TOGETHER))
    }
    settings = {rate: Setting(two(rate), "job") for rate in found}
    assert best_of_all([GRAPH], found, settings, tmp_path) == found


def test_a_placement_from_a_quiet_network_is_tried_beside_a_neighbour(tmp_path: Path) -> None:
    """And one under another sharing: rates are decided anew."""
    busy = two(FAST, background=FAST)
    quiet = placement_of(Problem(GRAPH, two(FAST), "job"), APART)
    found = {"quiet": quiet, "busy": placement_of(Problem(GRAPH, busy, "strict"), TOGETHER)}
    settings = {"quiet": Setting(two(FAST), "job"), "busy": Setting(busy, "strict")}
    best = best_of_all([GRAPH], found, settings, tmp_path)
    assert best["quiet"] == quiet
    # The floor is 80 % of the NIC: 0.125 s instead of 0.1.
    assert best["busy"].step_seconds == pytest.approx(2.125, rel=0.01)
    assert best["busy"].operators == quiet.operators
    ((_, _, _, rate),) = [row for row in best["busy"].rates_bits_per_second if row[0] == "s2"]
    assert rate == pytest.approx(0.8 * FAST, rel=0.01)


def test_a_placement_that_exceeds_a_memory_is_not_taken(tmp_path: Path) -> None:
    heavy = graph(
        {"A": 1.0, "B": 1.0}, [("A", ["B"], 10**6)], weight_bytes={"A": 8 << 20, "B": 8 << 20}
    )
    tight, roomy = (two(SLOW, memory=memory << 20) for memory in (10, 100))
    found = {
        "tight": placement_of(Problem(heavy, tight, "job"), [0, 1]),
        "roomy": placement_of(Problem(heavy, roomy, "job"), [0, 0]),
    }
    settings = {name: Setting(one, "job") for name, one in (("tight", tight), ("roomy", roomy))}
    assert best_of_all([heavy], found, settings, tmp_path) == found


def test_what_was_tried_before_a_run_was_cut_off_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept for these placements and settings alone."""
    settings = {rate: Setting(two(rate), "job") for rate in (FAST, SLOW)}
    found = {
        rate: placement_of(Problem(GRAPH, two(rate), "job"), device)
        for rate, device in ((FAST, TOGETHER), (SLOW, APART))
    }
    tried, runs_for = list[float](), 1

    def counted(problem: Problem, *given: Any, **more: Any) -> Any:
        tried.append(problem.cluster.nic_rates.max())
        if len(set(tried)) > runs_for:
            raise RuntimeError("cut off")
        return simulate(problem, *given, **more)

    def settings_tried(found: Any, settings: Any) -> set[float]:
        tried.clear()
        best_of_all([GRAPH], found, settings, tmp_path)
        return set(tried)

    monkeypatch.setattr(elsewhere, "simulate", counted)
    with pytest.raises(RuntimeError, match="cut off"):
        settings_tried(found, settings)
    assert settings_tried(found, settings) == {SLOW}
    assert settings_tried(found, settings) == set()
    runs_for = 2
    busy = {**settings, SLOW: Setting(two(SLOW, background=SLOW), "job")}
    assert settings_tried(found, busy) == {SLOW}
    other = {**found, FAST: placement_of(Problem(GRAPH, two(FAST), "job"), APART)}
    assert settings_tried(other, settings) == {FAST, SLOW}
