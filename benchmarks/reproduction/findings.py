"""Keeps what runs found, our figures beside the papers', in a file.

The file is kept with the sources, so that the document can be written again from its numbers,
without another run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Container, Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.report import UNKNOWN
from placewire.frozen import Frozen
from placewire.optimizer.published.comparison.our_figures import Between, Ended
from placewire.optimizer.published.comparison.ranking import seconds_to_gap
from placewire.optimizer.published.comparison.reproducing import Beside
from placewire.optimizer.published.comparison.rows import Row

FILE = Path(__file__).with_name("found.json")
# Between the names of a run's commits, machines and days, where its solves have several.
_AND = " and "


class Finding(Frozen):
    """A figure; text: as it is shown. known: (at least, at most) of each of its numbers, None where
    nothing is known. model: a row of the paper's table, or of ours. disturbed: it is a time, and
    other programs ran meanwhile, so that it is no more than an upper limit. setting: a digest of
    what its preset asked for (keys.setting_of); older: the sources have changed since."""

    model: str
    what: str
    paper: str = "-"
    text: str
    why: str = ""
    ended: Ended = "itself"
    known: tuple[tuple[float | None, float | None], ...] = ()
    disturbed: bool = False
    setting: str = ""
    older: bool = False

    @classmethod
    def of(cls, figure: Beside) -> Finding:
        known = () if figure.ended == "unplaced" else figure.known
        return cls(
            model=figure.model, what=figure.what, paper=figure.paper, text=figure.ours,
            why=figure.why, ended=figure.ended,
            known=tuple((_finite(one.low), _finite(one.high)) for one in known),
        )  # fmt: skip

    def number(self, place: int = 0) -> Between:
        """A method without a placement takes for ever."""
        if self.ended == "unplaced":
            return Between(inf, inf)
        if place >= len(self.known):
            return Between(-inf, inf)
        low, high = self.known[place]
        if self.disturbed:
            return Between(-inf, inf if self.ended == "clock" or high is None else high)
        return Between(-inf if low is None else low, inf if high is None else high)


def exact(model: str, what: str, text: str, *numbers: float) -> Finding:
    return Finding(model=model, what=what, text=text, known=tuple((one, one) for one in numbers))


def _finite(number: float) -> float | None:
    return None if abs(number) == inf else number


class Solve(Frozen):
    """A solve, and where it was: on another machine, or at an earlier commit, than what else its
    run found. disturbed: other programs ran meanwhile."""

    row: Row
    commit: str
    machine: str
    date: str
    disturbed: bool = False

    @classmethod
    def of(cls, row: Row, **where: Any) -> Solve:
        """Keeps of the course of the search only what figures of presets ask for."""
        near = seconds_to_gap(row, row.gap)
        told = [one for one in row.own_found[:-1] if one[0] == near]
        kept = (*told[:1], *row.own_found[-1:])
        return cls(row=row.model_copy(update={"found": (), "own_found": kept}), **where)


class Run(Frozen):
    """One model of a preset, or all of another source, which then has model "". key: a digest of
    the sources, or of all that decides the figures of another source. limit_seconds: the longest
    solve that was allowed; None: as the preset has it. paper_times: a solve had as long as the
    paper's own took, if that is longer. disturbed: other programs ran meanwhile. solves: those of
    its findings, and of a run that goes on, so that it can be taken up on any machine."""

    source: str
    model: str = ""
    key: str
    limit_seconds: float | None = None
    paper_times: bool = False
    disturbed: bool = False
    commit: str
    machine: str
    date: str
    findings: tuple[Finding, ...]
    solves: tuple[Solve, ...] = ()

    @property
    def commits(self) -> tuple[str, ...]:
        return tuple(self.commit.split(_AND))

    @property
    def is_of_unknown(self) -> bool:
        """Whether nobody can name the commit of one of its figures."""
        return UNKNOWN in self.commits


def joined(names: Iterable[str]) -> str:
    """The commits, machines or days of a run, each once."""
    return _AND.join(dict.fromkeys(names))


Runs = Mapping[tuple[str, str], Run]


def load(file: Path) -> dict[tuple[str, str], Run]:
    if not file.exists():
        return {}
    runs = [Run.model_validate(one) for one in json.loads(file.read_text())]
    return {(run.source, run.model): run for run in runs}


def save(runs: Runs, file: Path) -> None:
    """One finding or solve a line, so that changes can be read. The file is whole at any time."""
    text = "[\n" + ",\n".join(_lines(run) for _, run in sorted(runs.items())) + "\n]\n"
    replace_text(file, text)


def replace_text(file: Path, text: str) -> None:
    """The file has the old text or the new one, even if the machine is switched off meanwhile."""
    new = file.with_suffix(".new")
    with new.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)


def _lines(run: Run) -> str:
    head = json.dumps(run.model_dump(mode="json", exclude={"findings", "solves"}))
    lists = f', "findings": {_list(run.findings)}'
    if run.solves:
        lists += f', "solves": {_list(run.solves)}'
    return f"{head[:-1]}{lists}}}"


def _list(of: Iterable[Frozen]) -> str:
    lines = [json.dumps(one.model_dump(mode="json", exclude_defaults=True)) for one in of]
    return "[\n" + ",\n".join(lines) + "]"


def by_model(
    runs: Iterable[Run],
    models: Collection[str],
    *,
    times: Container[str] = (),
    older: Container[str] = (),
    settings: Mapping[tuple[str, str], str] | None = None,
) -> dict[str, dict[str, Finding]]:
    """The findings of a source's runs by model and figure; a model that was not run has none.
    models: which there are; all of the runs, where none is named. times: the figures that are
    times. older: the models of older runs. settings: what is asked now, by model and figure; what
    was found for another setting is left out."""
    found: dict[str, dict[str, Finding]] = {model: {} for model in models}
    for run in runs:
        for one in run.findings:
            if models and one.model not in models:
                continue
            if settings is not None and settings.get((one.model, one.what)) != one.setting:
                continue
            changed = {"older": run.model in older}
            if run.disturbed and one.what in times:
                changed["disturbed"] = True
            found.setdefault(one.model, {})[one.what] = one.model_copy(update=changed)
    return found
