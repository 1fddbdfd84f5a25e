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

from placewire.frozen import Frozen
from placewire.optimizer.published.comparison.our_figures import Between, Ended
from placewire.optimizer.published.comparison.reproducing import Beside

FILE = Path(__file__).with_name("found.json")


class Finding(Frozen):
    """A figure; text: as it is shown. known: (at least, at most) of each of its numbers, None where
    nothing is known. model: a row of the paper's table, or of ours. disturbed: it is a time, and
    other programs ran meanwhile, so that it is no more than an upper limit. older: what decides it
    has changed since."""

    model: str
    what: str
    paper: str = "-"
    text: str
    why: str = ""
    ended: Ended = "itself"
    known: tuple[tuple[float | None, float | None], ...] = ()
    disturbed: bool = False
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


class Run(Frozen):
    """One model of a preset, or all of another source, which then has model "". key: a digest of
    what decides the figures. limit_seconds: the longest solve that was allowed; None: as the preset
    has it. paper_times: a solve had as long as the paper's own took, if that is longer. disturbed:
    other programs ran meanwhile."""

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


Runs = Mapping[tuple[str, str], Run]


def load(file: Path) -> dict[tuple[str, str], Run]:
    if not file.exists():
        return {}
    runs = [Run.model_validate(one) for one in json.loads(file.read_text())]
    return {(run.source, run.model): run for run in runs}


def save(runs: Runs, file: Path) -> None:
    """One finding a line, so that changes can be read. The file is whole at any time."""
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
    head = json.dumps(run.model_dump(mode="json", exclude={"findings"}))
    rows = [one.model_dump(mode="json", exclude_defaults=True) for one in run.findings]
    return head[:-1] + ', "findings": [\n' + ",\n".join(map(json.dumps, rows)) + "]}"


def by_model(
    runs: Iterable[Run],
    models: Collection[str],
    *,
    times: Container[str] = (),
    older: Container[str] = (),
) -> dict[str, dict[str, Finding]]:
    """The findings of a source's runs by model and figure; a model that was not run has none.
    models: which there are; all of the runs, where none is named. times: the figures that are
    times. older: the models of older runs."""
    found: dict[str, dict[str, Finding]] = {model: {} for model in models}
    for run in runs:
        for one in run.findings:
            if models and one.model not in models:
                continue
            changed = {"older": run.model in older}
            if run.disturbed and one.what in times:
                changed["disturbed"] = True
            found.setdefault(one.model, {})[one.what] = one.model_copy(update=changed)
    return found
