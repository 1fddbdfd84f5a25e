"""Whether runs are taken up again where they were cut off, on any machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import pytest

from benchmarks.reproduction import keys, running
from benchmarks.reproduction.document import document
from benchmarks.reproduction.entry import Entry, FromOwn
from benchmarks.reproduction.findings import Finding, Run, load, save
from benchmarks.reproduction.order import cheapest_first
from benchmarks.reproduction.running import Terms
from placewire.optimizer.published.comparison import cases as compared
from placewire.optimizer.published.comparison import reproducing
from placewire.optimizer.published.comparison import running as comparing
from placewire.optimizer.published.comparison.cases import Case, ComparedGraph, Method
from placewire.optimizer.published.comparison.our_figures import Between
from placewire.optimizer.published.comparison.presets.preset import (
    Figure,
    Preset,
    Saved,
    Seeds,
    Solved,
)
from placewire.optimizer.published.comparison.reproducing import Beside
from placewire.optimizer.published.comparison.rows import Row
from tests.benchmarks.reproduction_examples import CLAIM, a_preset, a_run_of
from tests.optimizer.published.comparison_rows import row


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


def test_a_solve_that_only_the_cache_has_is_of_whoever_solved_it(tmp_path: Path, monkeypatch):
    """Not of the checkout, machine and day that read it; nor is one that was put into the cache."""
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft")), (CLAIM,))

    def found_at(commit: str, name: str, cache: str = "cache") -> tuple[int, Run]:
        (tmp_path / cache).mkdir(exist_ok=True)
        monkeypatch.setattr(running, "commit", lambda: commit)
        monkeypatch.setattr(running, "machine", lambda: f"machine of {commit}")
        solver = Solver(monkeypatch, tmp_path / cache)
        run(entry, tmp_path / name, Terms())
        return len(solver.asked), load(tmp_path / name)[entry.name, "p"]

    def of(one: Run) -> set[tuple[str, str]]:
        return {(solve.commit, solve.machine) for solve in one.solves}

    first = {("558b0e38", "machine of 558b0e38")}
    solves, found = found_at("558b0e38", "first.json")
    assert (solves, of(found)) == (2, first)
    solves, found = found_at("8f0c29a4", "lost.json")
    assert (solves, of(found), found.commits) == (0, first, ("558b0e38", "8f0c29a4"))
    assert found_at("8f0c29a4", "first.json", "elsewhere")[0] == 0, "put into another cache"
    assert of(found_at("8f0c29a4", "lost there.json", "elsewhere")[1]) == first
    (origins,) = (tmp_path / "cache").glob("*.origins.json")
    origins.unlink()
    solves, found = found_at("8f0c29a4", "not told.json")
    assert (solves, of(found)) == (0, {("unknown", "unknown")})
    page = document([entry], (), load(tmp_path / "not told.json"))
    assert "at commit unknown and 8f0c29a4" in page
    assert "Nobody can name the sources" in page and "| p (older) |" in page


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
