"""Whether what a paper prints is read as numbers, out of the preset that has it."""

from __future__ import annotations

import pytest

from benchmarks.reproduction.printed import Printed
from benchmarks.reproduction.rules import Within
from placewire.optimizer.published.comparison.presets.preset import Figure

FIGURES = [
    Figure(model, what, paper, None, "-")
    for what, row in {
        "operators": ("1,656 -> 120", "3,652 -> 206"),
        "solver, s": ("0.7", "8.3"),
        "walk, s": ("357", "OOM"),
        "saved": ("17.9 %", "-"),
    }.items()
    for model, paper in zip(("p", "q"), row, strict=True)
]


def test_cells_are_numbers_and_those_without_any_are_left_out():
    printed = Printed(FIGURES)
    assert printed.of("saved", "p") == 17.9
    assert printed.most("solver, s") == 8.3
    assert printed.most("walk, s") == 357
    cuts = printed.cuts("operators")
    assert (cuts.least, cuts.most) == pytest.approx((13.8, 17.728), rel=1e-4)
    longer = printed.times("walk, s", "solver, s")
    assert (longer.least, longer.most) == pytest.approx((510.0, 510.0))
    with pytest.raises(KeyError):
        printed.of("saved", "q")


def test_a_time_that_is_printed_is_the_limit_of_a_claim():
    claim = Printed(FIGURES).takes_at_most("The solver takes", "solver, s", "a", "b")
    assert claim.says == "The solver takes at most 8.3 s."
    assert claim.paper == "<= 8.3 s"
    assert claim.rules == (Within(("a", "b"), at_most=8.3, unit="s"),)
