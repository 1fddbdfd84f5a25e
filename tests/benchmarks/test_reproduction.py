"""Whether claims of the papers are judged by their numbers."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from benchmarks.reproduction.beside_auto import beside_auto
from benchmarks.reproduction.document import document
from benchmarks.reproduction.entry import Claim, Entry, FromOwn
from benchmarks.reproduction.findings import Finding, Run, by_model
from benchmarks.reproduction.rules import LESS, AtMost, Cut, Passes, Placed, Within
from benchmarks.reproduction.verdicts import verdict_of
from placewire.optimizer.published.comparison.our_figures import Between
from placewire.optimizer.published.comparison.reproducing import Beside
from tests.benchmarks.reproduction_examples import a_preset, a_run_of, late, no_fit, took


def no_fit_in_the_paper_either(what: str) -> Finding:
    return no_fit(what).model_copy(update={"paper": "OOM"})


def refused(what: str) -> Finding:
    return Finding(model="m", what=what, text="none", ended="none", why=f"{what} is too large")


OUT_OF_MEMORY = no_fit_in_the_paper_either("b"), no_fit_in_the_paper_either("c")
OURS_IS_LESS = Claim("a is less.", "2x", (AtMost("a", ("b", "c"), 0.5),))


def judged(claim: Claim, *figures: Finding):
    return verdict_of(claim, {"m": {one.what: one for one in figures}})


@pytest.mark.parametrize(
    ("figures", "told", "ours"),
    [
        ((took("a", 1.0), took("b", 2.0), took("c", 4.0)), "holds (1 of 1)", "0.5x"),
        ((took("a", 1.1), took("b", 2.0), took("c", 4.0)), "does not hold (0 of 1)", "0.55x"),
        # More time makes a step shorter, never longer.
        ((late("a", 0.0, 1.0), took("b", 2.0), took("c", 4.0)), "holds (1 of 1)", "<= 0.5x"),
        ((late("a", 0.0, 1.5), took("b", 2.0), took("c", 4.0)), "out of time", "<= 0.75x"),
        ((took("a", 1.0), late("b", 0.0, 2.0), took("c", 4.0)), "out of time", ">= 0.5x"),
        ((took("a", 1.5), late("b", 0.0, 2.0), took("c", 4.0)), "does not hold (0 of 1)",
         ">= 0.75x"),
        ((took("a", 1.0), late("b", None, None), took("c", 4.0)), "out of time", ">= 0.25x"),
        # A search that was ended takes at least as long.
        ((took("a", 1.0), late("b", 2.0, None), took("c", 4.0)), "holds (1 of 1)", "<= 0.5x"),
        ((late("a", 2.0, None), took("b", 2.0), took("c", 4.0)), "does not hold (0 of 1)", ">= 1x"),
        ((late("a", 1.0, None), late("b", 2.0, None), took("c", 9.0)), "out of time", ">= 0.111x"),
        # A method without a placement, here and in the paper, is beaten by one that has one; one
        # that has one in the paper, or refuses here, could be the best, and is beaten by none.
        ((took("a", 9.0), *OUT_OF_MEMORY), "holds (1 of 1)", "no placement"),
        ((no_fit("a"), took("b", 1.0), took("c", 1.0)), "does not hold (0 of 1)", "no placement"),
        ((no_fit("a"), *OUT_OF_MEMORY), "cannot be asked here", "-"),
        ((late("a", None, None), *OUT_OF_MEMORY), "out of time", "-"),
        ((took("a", 9.0), no_fit("b"), no_fit("c")), "cannot be asked here", "-"),
        ((took("a", 1.0), no_fit("b"), took("c", 2.0)), "cannot be asked here", "-"),
        ((took("a", 1.0), refused("b"), took("c", 2.0)), "cannot be asked here", "-"),
        ((took("a", 1.5), no_fit("b"), took("c", 2.0)), "does not hold (0 of 1)", "0.75x"),
        ((took("a", 1.5), refused("b"), took("c", 2.0)), "does not hold (0 of 1)", "0.75x"),
        ((refused("a"), took("b", 1.0), took("c", 2.0)), "cannot be asked here", "-"),
        ((took("a", 1.0), took("b", 2.0)), "not run yet", "-"),
    ],
)  # fmt: skip
def test_a_figure_is_compared_with_the_least_of_others(figures, told, ours):
    found = judged(OURS_IS_LESS, *figures)
    assert (found.told, found.ours) == (told, ours)


@pytest.mark.parametrize(
    ("ours", "other", "told"),
    [
        (1.0, took("d", 2.1), "holds (1 of 1)"),
        # What another keeps as well says nothing of ours; what ours does not keep does.
        (1.0, took("d", 2.0), "cannot be asked here"),
        (2.1, took("d", 1.0), "does not hold (0 of 1)"),
        (1.0, late("d", 0.0, 3.0), "out of time"),
        (1.0, late("d", 0.0, 2.0), "cannot be asked here"),
        (1.0, no_fit("d"), "holds (1 of 1)"),
    ],
)
def test_a_rule_that_another_keeps_as_well_cannot_be_asked(ours, other, told):
    claim = Claim("a is less.", "2x", (AtMost("a", ("b",), 0.5, unless="d"),))
    found = judged(claim, took("a", ours), took("b", 4.0), other)
    assert found.told == told
    if told == "cannot be asked here":
        assert found.why == "`d` keeps the rule as well"


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (took("a", 3.0), True), (took("a", 3.1), False), (late("a", 3.1, None), False),
        (late("a", 2.0, None), None), (late("a", 0.0, 2.0), None), (no_fit("a"), False),
        (took("a", 0.9), False), (refused("a"), None),
    ],
)  # fmt: skip
def test_a_figure_lies_within_limits(figure, holds):
    assert Within(("a",), 1.0, 3.0).judged({"a": figure}).holds is holds


def test_the_least_of_several_counts():
    within = Within(("a", "b"), at_most=3.0, unit="s")
    assert within.judged({"a": took("a", 9.0), "b": took("b", 2.0)}).holds
    assert within.judged({"a": refused("a"), "b": took("b", 2.0)}).holds
    assert within.words == "`a` or `b` is at most 3 s"
    assert Within(("a",), at_most=2305.2, unit="s").words == "`a` is at most 2,305 s"


@pytest.mark.parametrize(
    ("figure", "told"),
    [
        (took("a", 3.0), "holds (1 of 1)"),
        (took("a", 4.0), "not run undisturbed"),
        (late("a", 4.0, None), "not run undisturbed"),
    ],
)
def test_a_disturbed_time_is_an_upper_limit(figure, told):
    claim = Claim("So.", "3 s", (Within(("a",), at_most=3.0, unit="s"),))
    disturbed = figure.model_copy(update={"disturbed": True})
    assert judged(claim, disturbed).told == told
    run = Run(source="s", model="m", key="k", disturbed=True, commit="c", machine="m", date="d",
              findings=(figure, took("b", 1.0)))  # fmt: skip
    found = by_model([run], ["m"], times={"a"})["m"]
    assert found["a"].disturbed and not found["b"].disturbed
    assert by_model([run], ["another"]) == {"another": {}}


def test_a_reduction_cuts_by_a_factor_unless_nothing_is_left():
    assert Cut("a", 4.0).judged({"a": took("a", 8.0, 2.0)}).holds
    assert not Cut("a", 4.1).judged({"a": took("a", 8.0, 2.0)}).holds
    nothing = Cut("a", 4.0).judged({"a": took("a", 8.0, 0.0)})
    assert nothing.holds is None and "nothing is left" in nothing.why


def test_a_placement_is_there_or_not():
    assert Placed("a").judged({"a": took("a", 1.0)}).holds
    assert Placed("a").judged({"a": late("a", 0.0, 1.0)}).holds
    assert Placed("a").judged({"a": no_fit("a")}).holds is False
    assert Placed("a").judged({"a": late("a", None, None)}).why == "out of time"


def test_a_worked_example_passes_in_all_cases():
    assert Passes("a").judged({"a": took("a", 1.0)}).holds
    assert Passes("a").judged({"a": took("a", 0.5)}).holds is False


def test_always_once_and_on_average_over_models():
    ratios = {"p": 0.4, "q": 0.9}
    found = {m: {"a": took("a", r), "b": took("b", 1.0)} for m, r in ratios.items()}

    def told(holds, factor, **more):
        claim = Claim("So.", "-", (AtMost("a", ("b",), factor),), holds, **more)
        return verdict_of(claim, found).told

    assert told("always", 0.9) == "holds (2 of 2)"
    assert told("always", 0.5) == "does not hold (1 of 2)"
    assert told("always", 0.5, models=("p",)) == "holds (1 of 1)"
    assert told("once", 0.5) == "holds (1 of 2)"
    assert told("once", 0.3) == "does not hold (0 of 2)"
    assert told("on average", 0.65) == "holds (mean of 2 of 2)"
    assert told("on average", 0.64) == "does not hold (mean of 2 of 2)"
    found["r"] = {}
    assert told("always", 0.9) == "holds so far (2 of 2; 1 not run)"
    assert told("once", 0.5) == "holds (1 of 2; 1 not run)"
    assert told("once", 0.3) == "not run yet"
    assert told("on average", 0.65) == "not run yet"
    found["r"] = {"a": late("a", 0.0, 1.5), "b": took("b", 1.0)}
    assert told("once", 0.3) == told("on average", 0.7) == "out of time"
    assert told("always", 0.5) == "does not hold (1 of 2; 1 out of time)"
    assert told("always", 0.9) == "holds so far (2 of 2; 1 out of time)"
    found["r"] = {"a": took("a", 1.0), "b": refused("b")}
    assert told("always", 0.9) == "holds (2 of 2; 1 cannot be asked)"


def test_a_rival_that_is_left_out_is_named():
    found = judged(OURS_IS_LESS, took("a", 1.5), refused("b"), took("c", 2.0))
    assert found.without == ("`b` on m",)
    found = judged(OURS_IS_LESS, took("a", 1.0), refused("b"), took("c", 2.0))
    assert (found.kind, found.why) == ("cannot be asked here", "b is too large")
    assert judged(OURS_IS_LESS, took("a", 1.0), took("b", 2.0), took("c", 2.0)).without == ()


@pytest.mark.parametrize(
    ("left", "right", "holds"),
    [
        (1.0, 1.0, False), (0.995, 1.0, False), (0.98, 1.0, True),
        # What is saved may be nothing, or less than nothing.
        (0.0, 0.0, False), (-1.0, -1.0, False), (-2.0, -1.0, True), (0.0, 1.0, True),
    ],
)  # fmt: skip
def test_what_is_less_is_so_by_more_than_a_tie(left, right, holds):
    rule = AtMost("a", ("b",), LESS)
    assert rule.judged({"a": took("a", left), "b": took("b", right)}).holds is holds
    # A loss of one or more may be as large as a loss of one.
    assert rule.judged({"a": late("a", None, -1.0), "b": took("b", -1.0)}).holds is None


@pytest.mark.parametrize(
    ("of_p", "of_q", "ours"),
    [
        (late("a", 0.0, 0.3), late("a", 0.0, 0.4), "<= 0.4x"),
        (late("a", 2.0, None), late("a", 1.5, None), ">= 1.5x"),
        (late("a", 0.0, 0.3), late("a", 2.0, None), ">= 2x"),
        # Undecided ones.
        (late("a", 0.0, 0.6), late("a", 0.0, 0.8), "<= 0.8x"),
        (took("a", 0.2), late("a", 0.9, None), "0.2x, >= 0.9x"),
    ],
)
def test_the_limit_that_is_shown_is_one_that_all_cases_keep(
    of_p: Finding, of_q: Finding, ours: str
) -> None:
    claim = Claim("So.", "-", (AtMost("a", ("b",), 0.5),))
    for cases in ((of_p, of_q), (of_q, of_p)):
        found = {str(k): {"a": one, "b": took("b", 1.0)} for k, one in enumerate(cases)}
        assert verdict_of(claim, found).ours == ours


def test_no_ratio_of_another_case_stands_beside_a_case_without_a_placement():
    claim = Claim("So.", "-", (AtMost("a", ("b",)),))
    found: dict[str, dict[str, Finding]] = {
        "p": {"a": took("a", 1.0), "b": no_fit_in_the_paper_either("b")},
        "q": {"a": late("a", 0.0, 1.2), "b": took("b", 1.0)},
    }
    found_by_model = verdict_of(claim, found)
    assert (found_by_model.told, found_by_model.ours) == (
        "holds so far (1 of 1; 1 out of time)", "no placement",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Between(0.0, 2.0), "<= 2 s (out of time)"),
        (Between(2.0, inf), ">= 2 s (out of time)"),
        (Between(0.179, inf), ">= 2 s (out of time)"),
        (Between(-inf, 0.179), "<= 2 s (out of time)"),
        (Between(-0.1, inf), ">= 2 s (out of time)"),
        (Between(-inf, inf), "2 s (out of time)"),
    ],
)
def test_the_sign_says_from_which_side_a_number_is_known(number, text):
    beside = Beside("p", "heft, two, ms", "-", "2 s", "", "clock", (number,))
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft")))
    run = a_run_of(entry, beside)
    page = document([entry], (), {(run.source, run.model): run})
    assert f"| heft, two, ms | - | {text} |" in page
    claim = Claim("So.", "-", (Within(("a",), at_least=0.5, unit="%"),))
    shown = judged(claim, Finding.of(replace(beside, what="a"))).ours
    assert shown == "-" or shown[:2] == text[:2]


def test_auto_counts_only_against_rivals_that_ended_by_themselves():
    preset = a_preset("auto", "heft", "mcmc", "metis", "peft")
    of_p = (took("auto, two, ms", 1.0), took("heft, two, ms", 1.2), took("peft, two, ms", 0.9),
            late("mcmc, two, ms", 0.0, 5.0), no_fit("metis, two, ms"))  # fmt: skip
    assert beside_auto(preset, {"p": {one.what: one for one in of_p}, "q": {}}) == (
        "Of 2 steps of other methods, `auto` is as short, within 1%, as 1, or shorter; it is "
        "longer than peft, two on p. The clock ended these before they were shorter, so that they "
        "do not count: mcmc, two on p. These have no placement, and do not count: metis, two on p."
    )
    # What a rival has found when its time is over can only become shorter.
    soon = (took("auto, two, ms", 1.0), late("mcmc, two, ms", 0.0, 0.9))
    assert beside_auto(preset, {"p": {one.what: one for one in soon}}) == (
        "Of 1 steps of other methods, `auto` is as short, within 1%, as 0, or shorter; it is "
        "longer than mcmc, two on p."
    )
    late_auto = (late("auto, two, ms", 0.0, 1.0), took("peft, two, ms", 0.9))
    assert beside_auto(preset, {"p": {one.what: one for one in late_auto}}).endswith(
        "it is longer than peft, two on p (its own time was over)."
    )
    assert beside_auto(a_preset("heft"), {"p": {}, "q": {}}) == ""
