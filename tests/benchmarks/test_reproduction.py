"""Whether claims of the papers are judged by their numbers, and runs are taken up again."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import pytest

from benchmarks.reproduction import keys, running
from benchmarks.reproduction.beside_auto import beside_auto
from benchmarks.reproduction.document import document
from benchmarks.reproduction.entry import Claim, Entry, FromOwn, FromReport, FromTests
from benchmarks.reproduction.findings import Finding, Run, by_model, exact, load, save
from benchmarks.reproduction.order import cheapest_first
from benchmarks.reproduction.rules import LESS, AtMost, Cut, Passes, Placed, Within
from benchmarks.reproduction.running import Terms
from benchmarks.reproduction.sources import NoReportError, reported, worked
from benchmarks.reproduction.verdicts import verdict_of
from placewire.optimizer.published.comparison import cases as compared
from placewire.optimizer.published.comparison import reproducing
from placewire.optimizer.published.comparison import running as comparing
from placewire.optimizer.published.comparison.cases import Case, ComparedGraph, Method
from placewire.optimizer.published.comparison.our_figures import Between
from placewire.optimizer.published.comparison.presets.preset import (
    Captured,
    Figure,
    Preset,
    Saved,
    Seeds,
    Solved,
    equal_servers,
)
from placewire.optimizer.published.comparison.reproducing import Beside
from placewire.optimizer.published.comparison.rows import Row
from tests.optimizer.published.comparison_rows import row


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


class Solver:
    """Solves every case at once, as long as the machine runs: for so many solves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, runs_for: float = inf):
        self.left = runs_for
        self.asked: list[tuple[str, str, float]] = []
        monkeypatch.setattr(running, "FOLDER", folder)
        monkeypatch.setattr(
            reproducing, "captured_graph",
            lambda model, *_: ComparedGraph(model, folder / model, 1, model, "profile"),
        )  # fmt: skip
        monkeypatch.setattr(comparing, "solve_case", self.solve)

    def solve(self, case: Case, placements: Path) -> Row:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        method = case.method
        self.asked.append((case.graph.name, method.engine, method.time_limit_seconds))
        return row(
            key=case.key, graph=case.graph.name, engine=method.engine, gap=method.gap,
            limit_seconds=method.time_limit_seconds, found=((0.1, 3.0), (0.4, 2.0)),
            own_found=((0.1, 3.0, 1.0), (0.2, 2.0, 1.8), (0.3, 2.0, 1.9), (0.4, 2.0, 1.95)),
        )  # fmt: skip


def run(entry: Entry, file: Path, terms: Terms) -> None:
    kept = load(file)
    running.put_back(kept, terms)
    for one in running.runs_of([entry], kept, terms, partial(running.solved, terms=terms)):
        kept[one.source, one.model] = one
        save(kept, file)


def test_a_run_that_was_cut_off_goes_on_where_it_ended(tmp_path: Path, monkeypatch):
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft", "peft")))
    file = tmp_path / "found.json"

    def solved(limit: float | None = 5.0, disturbed: bool = True, runs_for: float = inf):
        solver = Solver(monkeypatch, tmp_path, runs_for)
        with suppress(KeyboardInterrupt):
            run(entry, file, Terms(limit, disturbed=disturbed))
        return solver.asked

    assert solved(runs_for=2) == [("p", "heft", 5.0), ("p", "peft", 5.0)]
    assert "Not run yet: q." in document([entry], (), load(file))
    assert solved() == [("q", "heft", 5.0), ("q", "peft", 5.0)]
    assert "Not run yet" not in document([entry], (), load(file))
    assert solved() == [], "all of it is there"
    assert solved(2.0) == [], "what had more time stands"
    assert len(solved(5.0, disturbed=False)) == 4, "what was solved beside others does not count"
    assert solved() == [], "what was run in quiet stands"
    assert solved(9.0) == [], "more time, but disturbed: neither is better"
    assert solved(None, disturbed=False)[0] == ("p", "heft", 30.0)
    assert "(older)" not in document([entry], (), load(file))
    monkeypatch.setattr(keys, "sources_digest", lambda folder: "other sources")
    monkeypatch.setattr(compared, "sources_digest", lambda: "other sources")
    assert len(solved(2.0)) == 4


def test_a_run_goes_on_on_another_machine_with_the_findings_alone(tmp_path: Path, monkeypatch):
    """It is cut off after each number of solves, and has its cache no more: none is made again."""
    preset = a_preset("heft", "peft", "metis")
    two = [Solved("two", Method(name), "step") for name in ("heft", "peft")]
    drawn = Seeds(Solved("two", Method("random"), "step"), (0, 1, 2))
    figures = [
        *preset.figures,
        Figure("p", "saved", "-", Saved(*two)),
        Figure("p", "drawn", "-", drawn),
        Figure("p", "solver", "-", Solved("two", Method("heft", gap=0.1), "solver")),
    ]
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: replace(preset, figures=figures)))
    whole = Solver(monkeypatch, tmp_path)
    run(entry, tmp_path / "whole.json", Terms())
    assert len(whole.asked) == 2 * 3 + 3 + 1
    for solves in range(1, len(whole.asked)):
        here, there = tmp_path / f"{solves}-here", tmp_path / f"{solves}-there"
        here.mkdir()
        there.mkdir()
        file = tmp_path / f"{solves}.json"
        first = Solver(monkeypatch, here, runs_for=solves)
        with pytest.raises(KeyboardInterrupt):
            run(entry, file, Terms())
        monkeypatch.setattr(running, "machine", lambda: "another")
        second = Solver(monkeypatch, there)
        run(entry, file, Terms())
        monkeypatch.undo()
        assert first.asked + second.asked == whole.asked
        found, there_found = load(tmp_path / "whole.json"), load(file)
        assert found.keys() == there_found.keys()
        assert all(one.findings == there_found[key].findings for key, one in found.items())
        assert there_found[entry.name, "q"].machine.endswith("another")


def test_a_run_that_goes_on_keeps_what_the_former_found(tmp_path: Path, monkeypatch):
    entry = Entry(
        "A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft", "peft")), (CLAIM,)
    )
    file = tmp_path / "found.json"
    former = a_run_of(entry, key="other sources")
    save({(former.source, former.model): former}, file)
    before = document([entry], (), load(file))
    assert "holds so far (1 of 1; 1 not run), older |" in before
    Solver(monkeypatch, tmp_path, runs_for=1)
    with pytest.raises(KeyboardInterrupt):
        run(entry, file, Terms())
    assert len(load(file)[entry.name, "p"].solves) == 1
    assert document([entry], (), load(file)) == before


def test_what_decides_claims_in_the_least_time_is_run_first():
    def entry(place: str, preset: Preset, claims: int) -> Entry:
        return Entry("A paper", place, "a", FromOwn(lambda: preset), (CLAIM,) * claims)

    many, few = a_preset("heft", "peft", "metis"), a_preset("heft", "mcmc")
    entries = [
        entry("few claims", few, 1), entry("many claims", many, 2),
        entry("shared", a_preset("heft", "peft"), 1), entry("no solves", a_preset(), 1),
    ]  # fmt: skip
    # 2 x 2 x 30 s for the claims of the first and third, 3 x 2 x 30 / 2 of the second, which then
    # has all that the third takes.
    order = ["no solves", "many claims", "shared", "few claims"]
    assert [one.place for one in cheapest_first(entries)] == order


CLAIM = Claim("It is so.", "-", (Within(("heft, two, ms",), at_most=2.0, unit="s"),))


ONE_SECOND = Beside("p", "heft, two, ms", "7 ms", "1 s", "", "itself", (Between(1.0, 1.0),))


def a_run_of(entry: Entry, figure: Beside = ONE_SECOND, **changed) -> Run:
    preset = keys.preset_of(entry)
    assert preset is not None
    setting = keys.settings_of(preset)["p", figure.what]
    run = Run(source=entry.name, model="p", key=keys.key_of(entry, "p"),
              limit_seconds=10.0, commit="f00d", machine="m", date="d",
              findings=(Finding.of(figure).model_copy(update={"setting": setting}),))  # fmt: skip
    return run.model_copy(update=changed)


def test_what_older_sources_found_is_marked(monkeypatch):
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
        "| p (older) | heft, two, ms | - | 1 s |", "holds so far (1 of 1; 1 not run), older |",
        "How the settings differ, of the next run:", "It is made anew by",
        "at commit f00d", "The sources have changed since.",
    )  # fmt: skip
    monkeypatch.setattr(keys, "sources_digest", lambda folder: "other sources")
    page = document([entry], (), kept)
    assert [one for one in older if one not in page.replace("\n", " ")] == []
    assert "at most 10 s here" not in page, "the limit of an older run is no setting of this preset"


THREE = equal_servers(3, "rtx4080s", 16, nics=1, gigabits=1.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda preset: replace(preset, clusters={"two": THREE}),
        lambda preset: replace(preset, devices=("v100",)),
        lambda preset: replace(
            preset, models={**preset.models, "p": replace(preset.models["p"], inference=True)}
        ),
        lambda preset: replace(
            preset,
            figures=[replace(one, asked=Solved("two", Method("heft", gap=0.1), "step"))
                     for one in preset.figures],
        ),
        lambda preset: replace(
            preset,
            figures=[replace(one, asked=replace(one.asked, figure="own"))
                     for one in preset.figures],
        ),
    ],
    ids=["cluster", "devices", "model", "method", "figure"],
)  # fmt: skip
def test_what_was_found_for_other_settings_is_not_run_yet(change):
    made = a_preset("heft")
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: made), (CLAIM,))
    run = a_run_of(entry)
    other = replace(entry, source=FromOwn(lambda: change(made)))
    page = document([other], (), {(run.source, run.model): run})
    assert "| all | 0 | 0 | 0 | 0 | 1 | 0 | 0 |" in page
    assert page == document([other], (), {})
    # What only names something else, or prints another number, is the same question.
    same = replace(made, title="A figure", clusters={"two": made.clusters["two"], "three": THREE})
    assert keys.settings_of(same) == keys.settings_of(made)


def test_a_figure_that_is_asked_otherwise_is_left_out_alone():
    made = a_preset("heft", "peft")
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: made), (CLAIM,))
    run = a_run_of(entry)
    page = document([entry], (), {(run.source, run.model): run})
    assert "| p | heft, two, ms | - | 1 s |" in page
    assert "| p | peft, two, ms | - | not run yet |" in page


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
    run = a_run_of(entry)
    for key, count in ((run.key, "0"), ("other", "1")):
        run = run.model_copy(update={"key": key})
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


def test_a_solve_may_have_the_papers_time(tmp_path: Path, monkeypatch):
    preset = a_preset("heft")
    figures = [
        replace(one, asked=replace(one.asked, paper_seconds=900.0))
        for one in preset.figures
        if isinstance(one.asked, Solved)
    ]
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: replace(preset, figures=figures)))
    solver, file = Solver(monkeypatch, tmp_path), tmp_path / "found.json"
    run(entry, file, Terms(paper_times=True))
    assert solver.asked == [("p", "heft", 900.0), ("q", "heft", 900.0)]
    page = document([entry], (), load(file))
    assert "as long as the paper's own took" in page and "--paper-times" in page
    run(entry, file, Terms())
    assert len(solver.asked) == 2, "what had more time stands"


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
