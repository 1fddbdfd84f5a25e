"""Of the variants of one step, the one with the shortest step is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from placewire.optimizer.bounds.bound import Bound
from placewire.optimizer.check.check import check
from placewire.optimizer.engines import auto
from placewire.optimizer.engines import best_variant as module
from placewire.optimizer.engines.best_variant import best_variant
from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.layout import Layout
from placewire.optimizer.engines.piece_search import few_solutions, piece_solutions
from placewire.optimizer.engines.place import Placed, place, placed
from placewire.optimizer.engines.refusals import (
    BrokenRuleError,
    EngineRefusedError,
    OutOfTimeError,
)
from placewire.optimizer.engines.reporting import JoinedReports
from placewire.optimizer.engines.solution import Progress
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from tests.optimizer.cases import cluster, graph, layered
from tests.optimizer.engines.test_grids import accumulated, servers

SETTINGS = SolveSettings(gap=0.0, moves=400, seed=3)
HUGE = 10**13


def step(parts: int, seconds: float = 1.0, **columns: dict[str, int]) -> OperatorGraph:
    """Parts that run side by side, `seconds` together, and take their inputs from A."""
    names = [f"P{k}" for k in range(parts)]
    times = {"A": 0.001, **dict.fromkeys(names, seconds / parts)}
    return graph(times, [("A", names, 1000)], **columns)


def problems(*graphs: OperatorGraph, servers: int = 4, memory: int = 10**12) -> list[Problem]:
    on = cluster(servers, (8e9,), memory=memory)
    return [Problem(one, on, sharing="even") for one in graphs]


# These steps have equal work, which four devices do in 0.286, 0.3 and 0.334 s.
ALIKE = step(7), step(10), step(9)


def names(count: int) -> list[str]:
    return [f"v{k}" for k in range(count)]


def test_the_variant_with_the_shorter_step_is_taken() -> None:
    for order in ((1, 4), (4, 1)):
        given = problems(*map(step, order))
        told: list[str] = []
        choice = best_variant(names(2), given, "auto", SETTINGS, tell=told.append)
        assert choice.taken == order.index(4)
        assert f"taken: v{choice.taken}" in told
        assert [one.name for one in choice.variants] == ["v0", "v1"]
        assert [one.operators for one in choice.variants] == [1 + parts for parts in order]
        found = place(given[choice.taken], "auto", choice.left, starts=choice.starts)
        placement = found.with_variants(choice.variants)
        assert placement.step_seconds < 0.3
        assert not check(given[choice.taken].graph, placement)
        (other,) = (one for k, one in enumerate(placement.variants) if k != choice.taken)
        assert other.step_seconds is None and other.bound_seconds > placement.step_seconds


def test_variants_that_begin_alike_are_searched_and_the_best_is_where_the_search_goes_on() -> None:
    given = problems(*ALIKE)
    choice = best_variant(names(3), given, "auto", SETTINGS)
    searched = [one.step_seconds for one in choice.variants]
    assert searched[choice.taken] is not None
    found = [seconds for seconds in searched if seconds is not None]
    assert searched[choice.taken] == min(found)
    start = choice.starts[0]
    assert len(start.device) == given[choice.taken].graph.operator_count
    assert choice.left.moves is not None and choice.left.moves < 400
    placement = place(given[choice.taken], "auto", choice.left, starts=choice.starts)
    assert placement.step_seconds <= min(found) * (1 + 1e-9)


def test_the_same_seed_and_moves_choose_the_same() -> None:
    given = problems(*ALIKE)
    one, other = (best_variant(names(3), given, "auto", SETTINGS) for _ in range(2))
    assert (one.taken, one.variants) == (other.taken, other.variants)
    assert [s.device.tolist() for s in one.starts] == [s.device.tolist() for s in other.starts]


def test_a_variant_without_a_placement_is_told_and_left_out() -> None:
    given = problems(step(8, weight_bytes={"P0": HUGE}), step(1), step(4))
    told: list[str] = []
    choice = best_variant(names(3), given, "auto", SETTINGS, tell=told.append)
    assert choice.taken == 2, "an index among all that were given"
    assert [one.name for one in choice.variants] == ["v1", "v2"]
    assert [line for line in told if line.startswith("v0: ")] == [
        line for line in told if "add devices or memory" in line
    ]
    found = place(given[2], "auto", choice.left, starts=choice.starts)
    placement = found.with_variants(choice.variants)
    (own,) = (v for v in placement.variants if v.structure_hash == given[2].graph.structure_hash)
    assert own.name == "v2" and own.step_seconds == placement.step_seconds


def test_no_variant_with_a_placement_is_an_error_that_says_why() -> None:
    given = problems(*(step(k, weight_bytes={"A": HUGE}) for k in (1, 2)))
    told: list[str] = []
    with pytest.raises(InfeasibleError, match="add devices or memory"):
        best_variant(names(2), given, "auto", SETTINGS, tell=told.append)
    assert [line.partition(":")[0] for line in told] == names(2)


def test_a_variant_that_only_several_devices_can_hold_is_taken_where_one_is_too_small() -> None:
    """The first has everything in one operator, the second can be divided."""
    whole = step(1, weight_bytes={"P0": 4000})
    parts = step(4, weight_bytes={f"P{k}": 1000 for k in range(4)})
    choice = best_variant(names(2), problems(whole, parts, memory=3000), "auto", SETTINGS)
    assert choice.taken == 1
    assert choice.variants[0].single_device_seconds is None


def test_variants_of_which_no_start_fits_are_searched_all_the_same() -> None:
    """Five weights of which no two fit onto one of four devices, though all together would."""
    parts = [step(n, weight_bytes={f"P{k}": 2000 for k in range(5)}) for n in (5, 6)]
    told: list[str] = []
    given = problems(*parts, memory=3000)
    choice = best_variant(names(2), given, "auto", SETTINGS, tell=told.append)
    assert [line.endswith("no start fits the memories") for line in told[:2]] == [True, True]
    for name in names(2):
        assert any(line.startswith(f"{name}: searched") for line in told)
    assert choice.starts == () and [one.step_seconds for one in choice.variants] == [None, None]
    with pytest.raises(InfeasibleError):
        place(given[choice.taken], "auto", choice.left)


def test_without_time_for_a_search_the_best_start_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A budget of moves is searched all the same, so that the answer is repeatable."""
    given = problems(ALIKE[1], ALIKE[0], ALIKE[2])
    told: list[str] = []
    short = SolveSettings(gap=0.0, time_limit_seconds=1e-3)
    choice = best_variant(names(3), given, "auto", short, tell=told.append)
    assert choice.taken == 1 and len(choice.starts) == 1
    assert not [line for line in told if "searched" in line]
    assert choice.left.time_limit_seconds < 1e-3
    told.clear()
    best_variant(names(3), given, "auto", replace(short, moves=400), tell=told.append)
    searched = [line for line in told if "searched" in line]
    # 320 moves in two rounds, of all three and of the better two.
    assert searched[:3] == [f"{name}: searched with 53 moves" for name in ("v1", "v0", "v2")]
    assert len(searched) == 5 and searched[3] == "v1: searched with 80 moves"
    monkeypatch.setattr(module, "_SMALL", 0)
    told.clear()
    best_variant(names(3), given, "auto", replace(short, moves=400), tell=told.append)
    searched = [line for line in told if "searched" in line]
    assert searched == [f"{name}: searched with 53 moves" for name in ("v1", "v0", "v2")]


def test_with_time_a_search_says_how_long_it_takes() -> None:
    given = problems(ALIKE[1], ALIKE[0])
    told: list[str] = []
    # The searches end at their bounds, so that nothing waits for this.
    settings = SolveSettings(gap=0.5, time_limit_seconds=10_000.0)
    choice = best_variant(names(2), given, "auto", settings, tell=told.append)
    (said,) = (line for line in told if line.startswith("v1: searched for "))
    assert 3900 <= int(said.split()[-2]) <= 4000 and choice.taken == 1
    assert 9_000 < choice.left.time_limit_seconds < 10_000


def test_without_time_for_all_starts_each_variant_has_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last one is the best by far, and its turn would come after the time."""
    monkeypatch.setattr(module, "_FEW_STARTS_PART", 1e6)
    graphs = [
        replace(step(parts, seconds), micro_batch=np.array([-1, *range(parts)]))
        for parts, seconds in ((1, 0.7), (2, 0.7), (17, 0.7), (5, 0.5))
    ]
    begun = 0

    def counted(problem: Problem) -> list[Found]:
        nonlocal begun
        begun += 1
        return few_solutions(problem)

    monkeypatch.setattr(module, "few_solutions", counted)
    limit = replace(SETTINGS, moves=None, time_limit_seconds=1e-3)
    choice = best_variant(names(4), problems(*graphs), "auto", limit)
    assert begun == 4
    assert all(one.bound_seconds > 0.0 for one in choice.variants) and choice.taken == 3


def test_what_cannot_win_by_its_bound_is_not_searched() -> None:
    """The search of the first finds 0.25 s; the second begins alike, with a chain of 0.26 s."""
    chain = graph(
        {"A": 0.001, "B": 0.26, **{f"P{k}": 0.24 for k in range(3)}},
        [("A", ["B", "P0", "P1", "P2"], 1000)],
    )
    told: list[str] = []
    given = problems(chain, step(4))
    choice = best_variant(names(2), given, "auto", SETTINGS, tell=told.append)
    assert choice.taken == 1 and "v1: searched" in " ".join(told)
    assert not [line for line in told if line.startswith("v0: searched")]
    assert choice.variants[0].step_seconds is None


def test_what_has_too_much_work_for_the_best_start_is_only_bounded_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first begins at 0.287 s, and the second's work takes four devices 0.325 s."""
    monkeypatch.setattr(module, "lower_bound", lambda problem: Bound(0.1, "another"))
    told: list[str] = []
    given = problems(ALIKE[0], step(100, 1.3))
    choice = best_variant(names(2), given, "auto", SETTINGS, tell=told.append)
    assert choice.taken == 0 and not [line for line in told if "searched" in line]
    (said,) = (line for line in told if line.startswith("v1: "))
    assert said.endswith("cannot be shorter than v0")
    assert choice.variants[0].bound_seconds == 0.1
    assert choice.variants[1].bound_seconds == pytest.approx(1.301 / 4)
    # Another engine may refuse the first one, or place it worse.
    choice = best_variant(names(2), given, "heft", SETTINGS)
    assert choice.variants[1].bound_seconds == 0.1


def test_the_search_of_what_was_taken_goes_on_from_its_best_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: list[Sequence[Layout]] = []

    def noted(*arguments: Any) -> list[Found]:
        known.append(arguments[-1])
        return piece_solutions(*arguments)

    monkeypatch.setattr(auto, "piece_solutions", noted)
    given = [
        Problem(accumulated(parts, weights=7), servers(*["cpu"] * 4), sharing="even")
        for parts in (6, 5)
    ]
    choice = best_variant(names(2), given, "auto", SETTINGS)
    assert choice.variants[choice.taken].step_seconds is not None
    layouts = [one.layout for one in choice.starts if one.layout is not None]
    known.clear()
    place(given[choice.taken], "auto", choice.left, starts=choice.starts)
    assert len(layouts) == 1 and known == [layouts]


def test_what_begins_far_from_the_best_is_not_searched_and_one_alone_keeps_all_moves() -> None:
    """The longer one's bound is below what the shorter one begins with."""
    far = step(3, 1.2)
    near = step(2, 0.5)
    told: list[str] = []
    choice = best_variant(names(2), problems(far, near), "auto", SETTINGS, tell=told.append)
    assert choice.variants[0].bound_seconds > 0 and choice.taken == 1
    assert not [line for line in told if "searched" in line]
    assert choice.left.moves == SETTINGS.moves


@pytest.mark.parametrize("engine", ["single", "heft"])
def test_other_engines_choose_by_their_own_placements(engine: str) -> None:
    """On one device the first is far shorter, and over several the second."""
    given = problems(step(1, 1.0), step(4, 2.0))
    choice = best_variant(names(2), given, engine, SETTINGS)
    assert choice.taken == {"single": 0, "heft": 1}[engine]
    placement = place(given[choice.taken], engine, choice.left, starts=choice.starts)
    best = {"single": 1.001, "heft": 0.501}[engine]
    assert placement.step_seconds == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("error", [BrokenRuleError, EngineRefusedError, OutOfTimeError])
def test_a_variant_that_an_engine_refuses_is_told_and_not_taken(
    monkeypatch: pytest.MonkeyPatch, error: type[ValueError]
) -> None:
    given = problems(step(4), step(8, 1.02))

    def refusing(problem: Problem, *arguments: Any) -> Placed:
        if problem is given[0]:
            raise error("this graph is too large")
        return placed(problem, *arguments)

    monkeypatch.setattr(module, "placed", refusing)
    told: list[str] = []
    choice = best_variant(names(2), given, "heft", SETTINGS, tell=told.append)
    assert choice.taken == 1
    assert "v0: this graph is too large" in told
    assert choice.variants[0].step_seconds is None


def test_progress_goes_on_over_the_variants() -> None:
    """And over the search of what was taken, as `optimizer solve` joins both."""
    seen: list[Progress] = []
    joined = JoinedReports(seen.append)
    on = cluster(3, (8e7, 8e7))
    given = [Problem(layered(3, 2, spread=part), on, sharing="even") for part in (0.5, 0.4)]
    settings = replace(SETTINGS, moves=3000)
    choice = best_variant(names(2), given, "auto", settings, progress=joined.next())
    assert choice.starts, "both were searched"
    before = len(seen)
    place(given[choice.taken], "auto", choice.left, "auto", joined.next(), choice.starts)
    assert len(seen) > before > 3 and seen[before].moves > 0
    assert falls([one.incumbent_seconds for one in seen])
    assert falls([-one.moves for one in seen])
    assert falls([-one.seconds for one in seen])


def test_joined_reports_pass_a_solver_s_words_on() -> None:
    seen: list[Progress] = []
    say = JoinedReports(seen.append).next()
    assert say is not None
    say(Progress(0.0, 2.0, 1.0, 5, "cut 3"))
    say(Progress(0.0, 3.0, 1.0, 6))
    assert [(one.words, one.incumbent_seconds, one.moves) for one in seen] == [
        ("cut 3", 2.0, 5), ("", 2.0, 6),
    ]  # fmt: skip
    assert JoinedReports(None).next() is None


def falls(values: Sequence[float]) -> bool:
    return all(a >= b for a, b in pairwise(values))
