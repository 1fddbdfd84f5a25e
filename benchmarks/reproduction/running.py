"""Runs what the list asks for, and keeps it: a run that was cut off goes on where it ended.

Solves and graphs are kept in the folder of the benchmarks' cache, as those of `make bench-methods`
are; what the runs found is kept beside the list, under a digest of what decides it.
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
from benchmarks.reproduction.findings import Finding, Run, Runs
from benchmarks.reproduction.keys import key_of, preset_of
from benchmarks.reproduction.sources import reported, worked
from placewire.optimizer.published.comparison.presets.preset import (
    Preset,
    at_papers_times,
    shortened,
)
from placewire.optimizer.published.comparison.reproducing import reproduce

FOLDER = CACHE / "reproduction"
Reproduce = Callable[[Preset], tuple[Finding, ...]]


@dataclass(frozen=True)
class Terms:
    """limit_seconds: of each solve, at most; None: as the presets have it. paper_times: a solve has
    as long as the paper's own took, if that is longer. disturbed: other programs run meanwhile."""

    limit_seconds: float | None = None
    paper_times: bool = False
    disturbed: bool = False


def runs_of(entries: Iterable[Entry], kept: Runs, terms: Terms, find: Reproduce) -> Iterator[Run]:
    """The runs that are missing, or older than the sources, one after the other. What was run on
    better terms is not run again."""
    for entry in entries:
        preset = preset_of(entry)
        if preset is None:
            yield from _unsolved(entry, kept)
            continue
        for model in preset.models:
            key = key_of(entry, model, preset)
            before = kept.get((entry.name, model))
            figures = [one for one in preset.figures if one.model == model]
            if not figures or (before is not None and _stands(before, key, terms)):
                continue
            _say(f"{entry.heading}: {model}")
            asked = replace(preset, figures=figures)
            if terms.paper_times:
                asked = at_papers_times(asked)
            if terms.limit_seconds is not None:
                asked = shortened(asked, terms.limit_seconds)
            yield _run(entry.name, model, key, terms, find(asked))


def solved(preset: Preset) -> tuple[Finding, ...]:
    """Raises OSError, RowsFileError."""
    found, _ = reproduce(preset, FOLDER, _say)
    return tuple(Finding.of(one) for one in found)


def _stands(before: Run, key: str, terms: Terms) -> bool:
    """Whether a run is of these sources, and these terms are not better, all in all. One that had
    more time, but was disturbed, stands against less time in quiet."""
    if before.key != key:
        return False
    had, asked = (
        (inf if one.limit_seconds is None else one.limit_seconds, one.paper_times,
         not one.disturbed)
        for one in (before, terms)
    )  # fmt: skip
    better = any(new > old for old, new in zip(had, asked, strict=True))
    worse = any(new < old for old, new in zip(had, asked, strict=True))
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


def _run(source: str, model: str, key: str, terms: Terms, findings: tuple[Finding, ...]) -> Run:
    return Run(
        source=source, model=model, key=key, limit_seconds=terms.limit_seconds,
        paper_times=terms.paper_times, disturbed=terms.disturbed, commit=commit(),
        machine=machine(), date=time.strftime("%Y-%m-%d"), findings=findings,
    )  # fmt: skip


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
