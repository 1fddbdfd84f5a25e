"""A search ends by its time limit, on a clock that only its own work moves on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import pytest

from placewire.optimizer.engines import auto, best_variant, bundling, place, search
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.names import SharingName
from placewire.optimizer.problem import Problem, SolveSettings
from tests.optimizer.cases import cluster, layered
from tests.optimizer.engines.counted_time import Costs, CountedTime
from tests.optimizer.engines.test_grids import accumulated, servers

# A graph of some hundred operators: nothing takes long beside the limit.
SMALL = Costs(simulation=0.02, move=0.001, bound=0.1, program=0.5, check=0.01)
# One of far more than 40,000: the check takes more than twice as long as the bound.
LARGE = Costs(simulation=0.2, move=0.005, bound=3.0, program=1.0, check=7.0)
# From these sizes on, a search leaves out what takes too long. The graphs here count as large.
SIZES: Mapping[tuple[ModuleType, str], int] = {
    (search, "_HOLD_ABOVE"): 0, (search, "_QUICK_ABOVE"): 0, (auto, "_REPORTS_RARELY_FROM"): 0,
    (auto, "_WHOLE_PIECES_FROM"): 0, (bundling, "_FEW_FROM"): 0, (place, "_BOUND_UP_TO"): 0,
    (place, "_MEASURED_FROM"): 0, (best_variant, "_SMALL"): 0,
}  # fmt: skip


def in_layers(sharing: SharingName) -> Problem:
    return Problem(layered(12, 3), cluster(3, (8e6, 8e6), latency=1e-3), sharing)


def in_parts(parts: int = 4, message_seconds: float = 0.0) -> Problem:
    on = servers(*["cpu"] * 3).model_copy(update={"message_seconds": message_seconds})
    return Problem(accumulated(parts, weights=8), on, "job")


# A graph keeps its bounds, and how long they took: each test makes its own.
CASES: Mapping[str, Callable[[], Sequence[Problem]]] = {
    "even": lambda: [in_layers("even")],
    "strict": lambda: [in_layers("strict")],
    "guarantee": lambda: [in_layers("guarantee")],
    "parts": lambda: [in_parts()],
    "messages": lambda: [in_parts(message_seconds=1e-3)],
    "several": lambda: [in_parts(parts) for parts in (2, 4, 6)],
}


def clock_of(
    problems: Sequence[Problem], costs: Costs, limit_seconds: float, patch: pytest.MonkeyPatch
) -> CountedTime:
    """The clock after a search of these variants of one step."""
    clock = CountedTime(costs)
    clock.set(patch)
    settings = SolveSettings(gap=0.0, time_limit_seconds=limit_seconds)
    problem, starts = problems[0], tuple[Solution, ...]()
    if len(problems) > 1:
        names = [str(k) for k in range(len(problems))]
        choice = best_variant.best_variant(names, problems, "auto", settings)
        problem, settings, starts = problems[choice.taken], choice.left, choice.starts
    place.placed(problem, "auto", settings, starts=starts)
    return clock


@pytest.mark.parametrize("name", CASES)
def test_nothing_begins_that_does_not_end_by_the_limit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of(CASES[name](), SMALL, 30.0, monkeypatch)
    assert {"simulation", "stronger bound", "check"} <= {what for what, _ in clock.begun}
    assert clock.now <= 30.0 + SMALL.simulation, clock.begun[-5:]
    assert clock.now > 25.0, "it searches as long as it may, so that the limit is what ends it"


@pytest.mark.parametrize("name", ["even", "parts", "messages", "several"])
def test_a_large_graph_keeps_the_time_that_its_check_takes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the answer would be there in time, and its check would end seconds later."""
    for (module, size), at in SIZES.items():
        monkeypatch.setattr(module, size, at)
    clock = clock_of(CASES[name](), LARGE, 90.0, monkeypatch)
    begun = clock.begun[-1]
    assert begun[0] == "check" and clock.now == begun[1] + LARGE.check
    assert 80.0 < clock.now <= 90.0, clock.begun[-5:]
