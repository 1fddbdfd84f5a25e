"""What a figure of ours says of a search: the clock may have ended it, or it has no placement."""

from __future__ import annotations

from functools import partial
from math import inf

import pytest

from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.our_figures import Between, NoFigureError
from placewire.optimizer.published.comparison.presets.preset import Solved
from placewire.optimizer.published.comparison.ranking import stopped_by_the_clock
from placewire.optimizer.published.comparison.solve_figures import (
    over_seeds,
    saved,
    solved,
    step_part,
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
        # What searches has found none so far; a program proves that there is none.
        ({"outcome": "infeasible", **LATE, **NOTHING, "engine": "mcmc"}, True),
        ({"outcome": "infeasible", **NOTHING, "engine": "mcmc"}, False),
        ({"outcome": "infeasible", **LATE, **NOTHING, "engine": "thesis-p3"}, False),
        ({"outcome": "infeasible", **LATE, **NOTHING, "engine": "getf-program"}, False),
        ({"outcome": "broken", **LATE, **NOTHING}, False),
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
        # Of a program, whose placement takes another time in the sort of the graph as given.
        (
            "own",
            {"step_seconds": 1.5, "own_found": ((0.1, 1.3, 0.9), (0.4, 1.2, 1.2))},
            "itself",
            Between(1.2, 1.2),
        ),
        ("search", {}, "itself", Between(0.5, 0.5)),
        ("search", LATE, "clock", Between(8.0, inf)),
        ("speedup", {}, "itself", Between(1.5, 1.5)),
        ("speedup", LATE, "clock", Between(1.5, inf)),
        ("solver", {"gap": 0.1, "own_found": ((0.4, 2.0, 1.9),)}, "itself", Between(0.4, 0.4)),
    ],
)
def test_a_figure_is_known_exactly_or_from_one_side(figure, changed, ended, known):
    ours = solved(row(**changed), Solved("c", Method("heft"), figure))
    assert (ours.ended, ours.known) == (ended, (known,))


@pytest.mark.parametrize(
    ("figure", "changed", "ended", "known"),
    [
        ("step", {"outcome": "infeasible", **NOTHING}, "unplaced", (Between(inf, inf),)),
        ("step", {"outcome": "infeasible", **LATE, **NOTHING, "engine": "hrl"}, "clock", ()),
        ("step", {"fits": False}, "unplaced", (Between(inf, inf),)),
        ("step", {"fits": False, **LATE}, "clock", ()),
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
        solved(row(**changed), Solved("c", Method("heft"), figure))
    assert (caught.value.ended, caught.value.known) == (ended, known)


def test_what_is_saved_is_known_exactly_or_from_one_side():
    slow, fast, late = Between(2.0, 2.0), Between(1.5, 1.5), Between(0.0, 1.5)
    assert saved(slow, fast).known == (Between(0.25, 0.25),)
    assert saved(slow, late).known == (Between(0.25, inf),)
    assert saved(late, fast).known == (Between(-inf, 0.0),)
    assert (saved(late, fast).text, saved(late, fast).ended) == ("0.0%", "clock")


def test_seeds_without_a_step_are_left_out_of_a_mean_that_is_not_known_then():
    asked = Solved("c", Method("heft"), "step")
    rows = {
        "two": row(contended_seconds=2.0), "four": row(contended_seconds=4.0),
        "none": row(outcome="infeasible", **NOTHING),
        "late": row(outcome="out of time", **LATE, **NOTHING),
    }  # fmt: skip

    def of(*names):
        return over_seeds([partial(step_part, rows[name], asked) for name in names], "{:g}".format)

    both = of("two", "four")
    assert (both.text, both.known, both.ended) == ("3 ± 1.41421", (Between(3.0, 3.0),), "itself")
    some = of("two", "four", "none")
    assert some.text == "3 ± 1.41421, 2 of 3 seeds"
    assert (some.known, some.ended) == ((Between(-inf, inf),), "clock")
    assert of("two", "late").text == "2, 1 of 2 seeds"
    with pytest.raises(NoFigureError) as caught:
        of("none", "late")
    assert caught.value.ended == "clock"
