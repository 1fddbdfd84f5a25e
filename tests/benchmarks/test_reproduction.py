"""Whether claims of the papers are judged by their numbers, and runs are taken up again."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks.report import UNKNOWN
from benchmarks.reproduction import keys, running
from benchmarks.reproduction.beside_auto import beside_auto
from benchmarks.reproduction.document import document
from benchmarks.reproduction.entry import Claim, Entry, FromOwn, FromReport, FromTests
from benchmarks.reproduction.findings import Finding, Run, by_model, exact, load, save
from benchmarks.reproduction.rules import LESS, AtMost, Cut, Passes, Placed, Within
from benchmarks.reproduction.running import Terms
from benchmarks.reproduction.sources import NoReportError, reported, worked
from benchmarks.reproduction.verdicts import verdict_of
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.our_figures import Between
from placewire.optimizer.published.comparison.presets.preset import (
    Captured,
    Figure,
    Preset,
    Solved,
    equal_servers,
)
from placewire.optimizer.published.comparison.reproducing import Beside


def took(what: str, *numbers: float) -> Finding:
    return exact("m", what, " -> ".join(map(str, numbers)), *numbers)


def late(what: str, low: float | None, high: float | None) -> Finding:
    text = "none" if low is high is None else f"{high or low} s"
    known = () if low is high is None else ((low, high),)
    return Finding(model="m", what=what, text=text, ended="clock", known=known, why="no time left")


def no_fit(what: str) -> Finding:
    return Finding(model="m", what=what, text="none", ended="unplaced", why="too large")


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
    run = Run(source=entry.name, model="p", key="k", commit="c", machine="m", date="d",
              findings=(Finding.of(beside),))  # fmt: skip
    page = document([entry], (), {(run.source, run.model): run})
    assert f"| heft, two, ms | - | {text} |" in page
    claim = Claim("So.", "-", (Within(("a",), at_least=0.5, unit="%"),))
    shown = judged(claim, Finding.of(replace(beside, what="a"))).ours
    assert shown == "-" or shown[:2] == text[:2]


def a_preset(*methods: str) -> Preset:
    figures = [
        Figure(model, f"{method}, two, ms", "-", Solved("two", Method(method), "step"))
        for model in ("p", "q")
        for method in methods
    ]
    model = Captured("placewire.examples.models.mlp:training_step", 8)
    two = equal_servers(2, "rtx4080s", 16, nics=1, gigabits=1.0)
    return Preset("A table", {"p": model, "q": model}, ("rtx4080s",), {"two": two}, figures, ())


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


class Finder:
    """Finds the same for every figure; ends the run at a model."""

    def __init__(self, ends_at: str = "") -> None:
        self.ends_at = ends_at
        self.asked: list[tuple[str | float, ...]] = []

    def __call__(self, preset: Preset) -> tuple[Finding, ...]:
        (model,) = {figure.model for figure in preset.figures}
        if model == self.ends_at:
            raise KeyboardInterrupt
        limits = {
            one.asked.method.time_limit_seconds
            for one in preset.figures
            if isinstance(one.asked, Solved)
        }
        self.asked.append((model, *limits))
        return tuple(exact(one.model, one.what, "1 s", 1.0) for one in preset.figures)


def test_a_run_that_was_cut_off_goes_on_where_it_ended(tmp_path: Path, monkeypatch):
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft", "peft")))
    file = tmp_path / "found.json"

    def run(finder: Finder, limit: float | None = 5.0, disturbed: bool = True):
        kept = load(file)
        for one in running.runs_of([entry], kept, Terms(limit, disturbed=disturbed), finder):
            kept[one.source, one.model] = one
            save(kept, file)
        return finder.asked

    with pytest.raises(KeyboardInterrupt):
        run(Finder(ends_at="q"))
    assert [model for _, model in load(file)] == ["p"]
    assert "Not run yet: q." in document([entry], (), load(file))
    assert run(Finder()) == [("q", 5.0)]
    assert "Not run yet" not in document([entry], (), load(file))
    assert run(Finder()) == [], "all of it is there"
    assert run(Finder(), 2.0) == [], "what had more time stands"
    assert run(Finder(), 5.0, disturbed=False) == [("p", 5.0), ("q", 5.0)]
    assert run(Finder()) == [], "what was run in quiet stands"
    assert run(Finder(), 9.0) == [], "more time, but disturbed: neither is better"
    assert run(Finder(), None, disturbed=False) == [("p", 30.0), ("q", 30.0)]
    assert "(older)" not in document([entry], (), load(file))
    monkeypatch.setattr(keys, "sources_digest", lambda folder: "other sources")
    assert run(Finder(), 2.0) == [("p", 2.0), ("q", 2.0)]


CLAIM = Claim("It is so.", "-", (Within(("heft, two, ms",), at_most=2.0, unit="s"),))


def a_run_of(entry: Entry, **changed) -> Run:
    figure = Beside("p", "heft, two, ms", "7 ms", "1 s", "", "itself", (Between(1.0, 1.0),))
    run = Run(source=entry.name, model="p", key=keys.key_of(entry, "p", keys.preset_of(entry)),
              limit_seconds=10.0, commit="f00d", machine="m", date="d",
              findings=(Finding.of(figure),))  # fmt: skip
    return run.model_copy(update=changed)


def test_what_older_sources_or_another_preset_found_is_marked(monkeypatch):
    preset = replace(a_preset("heft"), differs=("these settings differ",))
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: preset), (CLAIM,))
    run = a_run_of(entry)
    kept = {(run.source, run.model): run}
    page = document([entry], (), kept)
    assert "| p | heft, two, ms | - | 1 s |" in page
    assert "holds so far (1 of 1; 1 not run) |" in page
    assert "How the settings differ:" in page and "The sources or the settings" not in page
    assert "- A solve had at most 10 s here" in page
    older = (
        "| p (older) | heft, two, ms | 7 ms | 1 s |", "holds so far (1 of 1; 1 not run), older |",
        "How the settings differ, of the next run:", "It is made anew by",
        "at commit f00d", "The sources or the settings have changed since.",
    )  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(keys, "sources_digest", lambda folder: "other sources")
        page = document([entry], (), kept)
        assert [one for one in older if one not in page.replace("\n", " ")] == []
    # The same sources, but another machine for the figure.
    preset = replace(
        preset, clusters={"two": equal_servers(3, "rtx4080s", 16, nics=1, gigabits=1.0)}
    )
    page = document([entry], (), kept)
    assert [one for one in older if one not in page.replace("\n", " ")] == []
    assert "at most 10 s here" not in page, "the limit of an older run is no setting of this preset"


def test_what_is_claimed_and_not_asked_is_told_with_the_reason():
    unasked = ("that it is cheap: nothing here has a price",)
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft")), (CLAIM,),
                  unasked=unasked)  # fmt: skip
    told = "Claimed as well, and not asked:\n\n- That it is cheap: nothing here has a price.\n"
    assert told in document([entry], (), {})
    assert "not asked" not in document([replace(entry, unasked=())], (), {})


def test_the_page_is_the_same_whichever_model_was_run_first():
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft")), (CLAIM,))
    p, q = a_run_of(entry), a_run_of(entry, model="q")
    runs = {(run.source, run.model): run for run in (q, p)}
    assert "(p, q)" in document([entry], (), runs)


def test_a_claim_about_an_older_run_counts_apart():
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft")), (CLAIM,))
    for key, count in (({}, "0"), ({"key": "other"}, "1")):
        run = a_run_of(entry, **key)
        page = document([entry], (), {(run.source, run.model): run})
        assert f"| all | 0 | 1 | 0 | 0 | 0 | 0 | {count} |" in page


def test_a_worked_example_is_older_after_a_change_of_what_it_tests(monkeypatch):
    files = ("tests/controller/compile/test_thesis_figure_3_2.py",)
    entry = Entry("A paper", "figure 1", "an example", FromTests(files, "figure"))
    digests = dict.fromkeys(("controller", "examples/models", "optimizer"), "0")
    monkeypatch.setattr(keys, "sources_digest", digests.__getitem__)
    before = keys.key_of(entry)
    for folder in digests:
        digests[folder] = "1"
        assert keys.key_of(entry) != before
        digests[folder] = "0"
    assert keys.key_of(entry) == before


def test_a_solve_may_have_the_papers_time():
    preset = a_preset("heft")
    figures = [
        replace(one, asked=replace(one.asked, paper_seconds=900.0))
        for one in preset.figures
        if isinstance(one.asked, Solved)
    ]
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: replace(preset, figures=figures)))
    finder = Finder()
    found = list(running.runs_of([entry], {}, Terms(paper_times=True), finder))
    assert finder.asked == [("p", 900.0), ("q", 900.0)]
    page = document([entry], (), {(run.source, run.model): run for run in found})
    assert "as long as the paper's own took" in page and "--paper-times" in page
    kept = {(run.source, run.model): run for run in found}
    assert list(running.runs_of([entry], kept, Terms(), finder)) == [], "what had more time stands"


def test_findings_are_the_same_after_they_were_kept(tmp_path: Path):
    known = (Between(2.0, inf),)
    findings = tuple(
        map(
            Finding.of,
            (
                Beside("m", "late", "4 h", "2 s", "", "clock", known),
                Beside("m", "no fit", "OOM", "none", "too large", "unplaced", (Between(inf, inf),)),
                Beside("m", "cut", "9 -> 3", "8 -> 2", "", "itself",
                       (Between(8, 8), Between(2, 2))),
            ),
        )
    )  # fmt: skip
    run = Run(source="s", model="m", key="k", commit="c", machine="two cores", date="today",
              findings=findings)  # fmt: skip
    save({("s", "m"): run}, tmp_path / "found.json")
    kept = load(tmp_path / "found.json")
    assert kept == {("s", "m"): run}
    ended, no_place, cut = kept["s", "m"].findings
    assert ended.number() == Between(2.0, inf)
    assert no_place.number() == Between(inf, inf)
    assert cut.number(1) == Between(2, 2)


REPORT = """# Measured

## 8. A script

| servers | started | step, s | part | part |
| --- | ---: | ---: | ---: | ---: |
| 2 | alone | 0.55 | 53.4% | - |
| 2 | applied | 1,024.5 | -0.3% | +7% |

Measured at commit 4cc6127e on 2026-11-28, 2 cores (x86_64), Python 3.11.7.

## 9. Another
"""


def test_figures_of_a_report_are_read_with_their_commit(tmp_path: Path):
    (tmp_path / "job.md").write_text(REPORT)
    source = FromReport("job.md", "8. A script", "make bench-job", keys=2)
    found = reported(source, tmp_path)
    assert (found.commit, found.date) == ("4cc6127e", "2026-11-28")
    assert found.machine == "2 cores (x86_64), Python 3.11.7"
    numbers = {one.what: one.number().low for one in found.findings if one.known}
    assert numbers == {
        "alone: step, s": 0.55, "alone: part": 0.534, "applied: step, s": 1024.5,
        "applied: part": -0.003, "applied: part (2)": 0.07,
    }  # fmt: skip
    assert {one.model for one in found.findings} == {"2 servers"}
    assert not found.disturbed
    for title in ("7. Gone", "9. Another"):
        with pytest.raises(NoReportError, match=r"job.md has no table .*`make bench-job` writes"):
            reported(replace(source, title=title), tmp_path)


def test_figures_of_a_report_are_older_after_a_change_of_their_table_alone(monkeypatch, tmp_path):
    file, report = tmp_path / "job.md", REPORT + "\n| x | y |\n"
    monkeypatch.setattr(keys, "ROOT", tmp_path)
    entry = Entry("A paper", "figure 1", "a", FromReport("job.md", "8. A script", "make"))

    def key(text: str) -> str:
        file.write_text(text)
        return keys.key_of(entry)

    assert key(report) == key(report.replace("| x | y |", "| x | z |"))
    assert key(report) == key(report.replace("Measured at", "What it shows.\n\nMeasured at"))
    assert key(report) == key(report.replace("Python 3.11.7.", "Python 3.11.7. What it shows."))
    assert key(report) != key(report.replace("0.55", "0.54"))
    assert key(report) != key(report.replace("4cc6127e", "5cc6127e"))


def test_figures_of_a_report_whose_commit_nobody_knows_are_older():
    source = FromReport("docs/benchmarks/job.md", "8. A script", "make")
    claim = Claim("It is short.", "-", (Within(("step, s",), at_most=2.0, unit="s"),))
    entry = Entry("A paper", "figure 1", "steps", source, (claim,))

    def page(commit: str) -> str:
        run = Run(source=entry.name, key=keys.key_of(entry), commit=commit, machine="m", date="d",
                  findings=(took("step, s", 1.0),))  # fmt: skip
        return document([entry], (), {(run.source, run.model): run})

    assert "| holds (1 of 1) |" in page("0dd10c69")
    assert "| holds (1 of 1), older |" in page(UNKNOWN)
    assert "at commit unknown on d, m. Nobody can name the sources" in page(UNKNOWN)


@pytest.mark.parametrize("prose", ["", " It was placed anew, with seed 8."])
def test_a_report_of_figures_that_were_measured_beside_other_programs_says_so(
    tmp_path: Path, prose: str
):
    told = f"Python 3.11.7, beside other programs.{prose}"
    (tmp_path / "job.md").write_text(REPORT.replace("Python 3.11.7.", told))
    source = FromReport("job.md", "8. A script", "make bench-job", keys=2, times=("step, s",))
    found = reported(source, tmp_path)
    assert found.disturbed
    assert found.machine == "2 cores (x86_64), Python 3.11.7"
    with pytest.raises(NoReportError, match=r"beside other programs; its entry .* say in `times`"):
        reported(replace(source, times=None), tmp_path)


@pytest.mark.parametrize(
    ("disturbed", "shorter", "longer"),
    [(False, "holds (1 of 1)", "holds (1 of 1)"), (True, "holds (1 of 1)", "not run undisturbed")],
)
def test_a_time_of_a_report_is_an_upper_limit_beside_other_programs(
    disturbed: bool, shorter: str, longer: str
):
    source = FromReport(
        "docs/benchmarks/job.md", "8. A script", "make", times=("step, s",), picture="drawn.svg"
    )
    claims = (
        Claim("It is shorter.", "-", (AtMost("step, s", ("long, s",), LESS),)),
        Claim("It is longer.", "-", (AtMost("short, s", ("step, s",), LESS),)),
    )
    entry = Entry("A paper", "figure 1", "steps", source, claims)
    findings = took("short, s", 1.0), took("step, s", 2.0), took("long, s", 3.0)
    run = Run(source=entry.name, key=keys.key_of(entry), commit="c", machine="m", date="d",
              disturbed=disturbed, findings=findings)  # fmt: skip
    page = document([entry], (), {(run.source, run.model): run})
    verdicts = [line.split(" | ")[-1].removesuffix(" |") for line in page.splitlines()
                if re.match(r"\| [12] \| - ", line)]  # fmt: skip
    assert verdicts == [shorter, longer]
    assert "![Ours of A paper, figure 1](drawn.svg)" in page
    assert ("beside other programs" in page.partition("It is made by")[2]) == disturbed


def test_worked_examples_are_run_as_tests(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_figure_1(record_property): record_property('it', 'passes')\n"
        "@pytest.mark.parametrize('k', [1, 2])\n"
        "def test_figure_2(k): assert k == 1\n"
        "def test_other(): raise ValueError\n"
    )
    found = worked(FromTests(("test_it.py",), "figure"), tmp_path)
    assert {one.what: one.text for one in found} == {"figure_1": "1 of 1", "figure_2": "1 of 2"}
