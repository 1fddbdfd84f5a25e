"""Runs what the list asks for, and keeps it: a run that was cut off goes on where it ended.

Solves and graphs are kept in the folder of the benchmarks' cache, as those of `make bench-methods`
are. What the runs found is kept beside the list, under digests of what decides it, and so is each
solve as soon as it ended: a run that is cut off loses at most one, and goes on wherever that file
is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from benchmarks.engine.measured import CACHE
from benchmarks.report import ROOT, commit, machine
from benchmarks.reproduction.entry import Entry, FromReport, FromTests
from benchmarks.reproduction.findings import Finding, Run, Runs, Solve, joined
from benchmarks.reproduction.keys import key_of, preset_of, settings_of
from benchmarks.reproduction.order import cheapest_first, solves_in
from benchmarks.reproduction.origins import NOBODY_KNOWS, Origin, keep_origins, origins_of
from benchmarks.reproduction.sources import reported, worked
from placewire.optimizer.published.comparison.presets.preset import (
    NOT_IN_TEXT,
    Figure,
    Preset,
    at_papers_times,
    shortened,
)
from placewire.optimizer.published.comparison.reproducing import reproduce
from placewire.optimizer.published.comparison.rows import RowsFile

FOLDER = CACHE / "reproduction"
Found = tuple[tuple[Finding, ...], tuple[Solve, ...]]
Reproduce = Callable[[Preset], Found]


@dataclass(frozen=True)
class Terms:
    """limit_seconds: of each solve, at most; None: as the presets have it. paper_times: a solve has
    as long as the paper's own took, if that is longer. disturbed: other programs run meanwhile."""

    limit_seconds: float | None = None
    paper_times: bool = False
    disturbed: bool = False


def runs_of(entries: Iterable[Entry], kept: Runs, terms: Terms, find: Reproduce) -> Iterator[Run]:
    """The runs that are missing, or older than the sources or the settings, one after the other,
    and meanwhile the former ones with each new solve. What was run on better terms is not run
    again."""
    known = {one.row.key: one for one in _solves(kept, terms)}
    for entry in cheapest_first(entries):
        preset = preset_of(entry)
        if preset is None:
            yield from _unsolved(entry, kept)
            continue
        for model in preset.models:
            before = kept.get((entry.name, model))
            figures = [one for one in preset.figures if one.model == model]
            asked = replace(preset, figures=figures)
            if not figures or (before is not None and _stands(before, entry, asked, terms)):
                continue
            _say(f"{entry.heading}: {model}")
            yield from _runs(entry, model, asked, before, terms, find, known)


def solved(preset: Preset, terms: Terms) -> Found:
    """Returns what was found, and the solves; one that the cache had before keeps the origin that
    the cache tells. Raises OSError, RowsFileError."""
    file = FOLDER / _rows_file(terms)
    with RowsFile(file) as there:
        before = set(there.rows)
    found, rows = reproduce(preset, FOLDER, _say, file.name)
    keep_origins(file, {row.key: _here() for row in rows if row.key not in before})
    origins = origins_of(file)
    solves = (
        Solve.of(row, disturbed=terms.disturbed, **origins.get(row.key, NOBODY_KNOWS).model_dump())
        for row in rows
    )
    return tuple(Finding.of(one) for one in found), tuple(solves)


def put_back(kept: Runs, terms: Terms) -> None:
    """Into the cache, the solves that runs keep: it may be that of another machine. Raises OSError,
    RowsFileError."""
    rows_file, origins = FOLDER / _rows_file(terms), dict[str, Origin]()
    with RowsFile(rows_file) as file:
        for one in _solves(kept, terms):
            origins[one.row.key] = Origin(commit=one.commit, machine=one.machine, date=one.date)
            if one.row.key not in file.rows:
                file.add(one.row)
        keep_origins(rows_file, origins)


def _rows_file(terms: Terms) -> str:
    """Returns the file for quiet solves, or the one for solves beside other programs, which answer
    nothing that is asked in quiet."""
    return "rows-disturbed.jsonl" if terms.disturbed else "rows.jsonl"


def _solves(kept: Runs, terms: Terms) -> Iterator[Solve]:
    solves = (one for run in kept.values() for one in run.solves)
    return (one for one in solves if one.disturbed == terms.disturbed)


def _runs(
    entry: Entry, model: str, asked: Preset, before: Run | None, terms: Terms, find: Reproduce,
    known: dict[str, Solve],
) -> Iterator[Run]:  # fmt: skip
    """Yields, after each solve of a model, its earlier run with the solves made since, and at last
    its new run."""
    settings = settings_of(asked)
    if terms.paper_times:
        asked = at_papers_times(asked)
    if terms.limit_seconds is not None:
        asked = shortened(asked, terms.limit_seconds)
    key = key_of(entry, model)
    going = before or _run(entry.name, model, "", terms)
    mine: dict[str, Solve] = {}
    for solve in solves_in(asked, model):
        _, found = find(replace(asked, figures=[Figure(model, "a solve", NOT_IN_TEXT, solve)]))
        new = {one.row.key: one for one in found if one.row.key not in known}
        known.update(new)
        mine.update({one.row.key: known[one.row.key] for one in found})
        if new:
            going = going.model_copy(update={"solves": (*going.solves, *new.values())})
            yield going
    findings, _ = find(asked)
    told = tuple(
        one.model_copy(update={"setting": settings[one.model, one.what]}) for one in findings
    )
    yield _run(entry.name, model, key, terms, told, tuple(mine.values()))


def _stands(before: Run, entry: Entry, asked: Preset, terms: Terms) -> bool:
    """Whether a run is of these sources and settings, and these terms are not better, all in all.
    One that had more time, but was disturbed, stands against less time in quiet."""
    if before.key != key_of(entry, before.model):
        return False
    there = {((one.model, one.what), one.setting) for one in before.findings}
    if not there.issuperset(settings_of(asked).items()):
        return False
    had, have = (
        (inf if one.limit_seconds is None else one.limit_seconds, one.paper_times,
         not one.disturbed)
        for one in (before, terms)
    )  # fmt: skip
    better = any(new > old for old, new in zip(had, have, strict=True))
    worse = any(new < old for old, new in zip(had, have, strict=True))
    if better and worse:
        _say(
            f"{before.source}: {before.model} is kept: these terms are better in one way and worse "
            "in the other"
        )
    return worse or not better


def _unsolved(entry: Entry, kept: Runs) -> Iterator[Run]:
    source, before = entry.source, kept.get((entry.name, ""))
    if not isinstance(source, FromTests | FromReport):
        return
    key = key_of(entry)
    if before is not None and before.key == key:
        return
    if isinstance(source, FromTests):
        _say(f"{entry.heading}: tests")
        yield _run(entry.name, "", key, Terms(), worked(source, ROOT))
    else:
        found = reported(source, ROOT)
        yield Run(
            source=entry.name, key=key, disturbed=found.disturbed, commit=found.commit,
            machine=found.machine, date=found.date, findings=found.findings,
        )  # fmt: skip


def _run(
    source: str, model: str, key: str, terms: Terms, findings: tuple[Finding, ...] = (),
    solves: tuple[Solve, ...] = (),
) -> Run:  # fmt: skip
    """It names every commit, machine and day of its solves."""
    places: list[Solve | Origin] = [*solves, _here()]
    return Run(
        source=source, model=model, key=key, limit_seconds=terms.limit_seconds,
        paper_times=terms.paper_times, disturbed=terms.disturbed, findings=findings,
        solves=solves, commit=joined(one.commit for one in places),
        machine=joined(one.machine for one in places), date=joined(one.date for one in places),
    )  # fmt: skip


def _here() -> Origin:
    return Origin(commit=commit(), machine=machine(), date=time.strftime("%Y-%m-%d"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
