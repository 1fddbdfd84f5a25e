"""What a figure of ours says of a search: the clock may have ended it, or it has no placement."""

from __future__ import annotations

from math import inf

import pytest

from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.presets.preset import Solved
from placewire.optimizer.published.comparison.ranking import stopped_by_the_clock
from placewire.optimizer.published.comparison.reproducing import (
    Between,
    NoFigureError,
    _saved,
    _solved,
)
from tests.optimizer.published.comparison_rows import row

LATE = {"search_seconds": 8.0, "limit_seconds": 10.0}
NOTHING = {"contended_seconds": None, "step_seconds": None, "fits": None}


@pytest.mark.parametrize(
    ("changed", "stopped"),
    [
        ({}, False),
        (LATE, True),
        # A program that is within its gap has ended, however late.
        ({**LATE, "gap": 0.1, "own_found": ((7.0, 2.0, 1.9),)}, False),
        ({**LATE, "gap": 0.1, "own_found": ((7.0, 2.0, 1.0),)}, True),
        ({"outcome": "out of time", **NOTHING}, True),
        ({"outcome": "overran", **NOTHING}, True),
        ({"outcome": "infeasible", **LATE, **NOTHING}, False),
        ({"outcome": "refused", **NOTHING}, False),
    ],
)
def test_the_clock_stops_what_more_time_could_better(changed, stopped):
    assert stopped_by_the_clock(row(**changed)) is stopped


@pytest.mark.parametrize(
    ("figure", "changed", "ended", "known"),
    [
        ("step", {}, "itself", Between(2.0, 2.0)),
        ("step", LATE, "clock", Between(0.0, 2.0)),
        ("own", {"step_seconds": 1.5}, "itself", Between(1.5, 1.5)),
        ("search", {}, "itself", Between(0.5, 0.5)),
        ("search", LATE, "clock", Between(8.0, inf)),
        ("speedup", {}, "itself", Between(1.5, 1.5)),
        ("speedup", LATE, "clock", Between(1.5, inf)),
        ("solver", {"gap": 0.1, "own_found": ((0.4, 2.0, 1.9),)}, "itself", Between(0.4, 0.4)),
    ],
)
def test_a_figure_is_known_exactly_or_from_one_side(figure, changed, ended, known):
    ours = _solved(row(**changed), Solved("c", Method("heft"), figure))
    assert (ours.ended, ours.known) == (ended, (known,))


@pytest.mark.parametrize(
    ("figure", "changed", "ended", "known"),
    [
        ("step", {"outcome": "infeasible", **NOTHING}, "unplaced", (Between(inf, inf),)),
        ("step", {"fits": False}, "unplaced", (Between(inf, inf),)),
        ("step", {"outcome": "out of time", **LATE, **NOTHING}, "clock", ()),
        ("step", {"outcome": "refused", **NOTHING}, "none", ()),
        ("search", {"outcome": "out of time", **LATE, **NOTHING}, "clock", (Between(8.0, inf),)),
        ("search", {"outcome": "infeasible", **NOTHING}, "none", ()),
        ("speedup", {"outcome": "infeasible", **NOTHING}, "none", ()),
        ("solver", {**LATE, "gap": 0.1, "own_found": ((0.4, 2.0, 1.0),)}, "clock",
         (Between(8.0, inf),)),
        ("solver", {}, "none", ()),
    ],
)  # fmt: skip
def test_without_a_figure_something_is_known_all_the_same(figure, changed, ended, known):
    with pytest.raises(NoFigureError) as caught:
        _solved(row(**changed), Solved("c", Method("heft"), figure))
    assert (caught.value.ended, caught.value.known) == (ended, known)


def test_what_is_saved_is_known_on_equal_terms_or_from_one_side():
    slow, fast = row(contended_seconds=2.0), row(contended_seconds=1.5)
    late = row(contended_seconds=1.5, **LATE)
    assert _saved(slow, fast, on_equal_terms=False).known == (Between(0.25, 0.25),)
    assert _saved(slow, late, on_equal_terms=False).known == (Between(0.25, 1.0),)
    assert _saved(late, slow, on_equal_terms=False).known[0].low == -inf
    same = _saved(slow, late, on_equal_terms=True)
    assert (same.known, same.ended) == ((Between(0.25, 0.25),), "itself")
