"""What runs found: figures of ours beside the papers', and the file that keeps them.

The file is kept with the sources, so that the document can be written again from its numbers,
without another run.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from math import inf
from pathlib import Path

from placewire.frozen import Frozen
from placewire.optimizer.published.comparison.reproducing import Beside, Between, Ended

FILE = Path(__file__).with_name("found.json")


class Finding(Frozen):
    """A figure; text: as it is shown. known: (at least, at most) of each of its numbers, None where
    nothing is known. model: a row of the paper's table, or of ours. disturbed: it is a time, and
    other programs ran meanwhile, so that it is no more than an upper limit."""

    model: str
    what: str
    paper: str = "-"
    text: str
    why: str = ""
    ended: Ended = "itself"
    known: tuple[tuple[float | None, float | None], ...] = ()
    disturbed: bool = False

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
    has it. disturbed: other programs ran meanwhile."""

    source: str
    model: str = ""
    key: str
    limit_seconds: float | None = None
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
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def _lines(run: Run) -> str:
    head = json.dumps(run.model_dump(mode="json", exclude={"findings"}))
    rows = [one.model_dump(mode="json", exclude_defaults=True) for one in run.findings]
    return head[:-1] + ', "findings": [\n' + ",\n".join(map(json.dumps, rows)) + "]}"


def by_model(
    runs: Runs, source: str, models: Iterable[str], times: Container[str]
) -> dict[str, dict[str, Finding]]:
    """The findings of a source by model and figure; a model that was not run has none. times: the
    figures that are times."""
    found: dict[str, dict[str, Finding]] = {model: {} for model in models}
    for run in runs.values():
        if run.source == source:
            for one in run.findings:
                disturbed = run.disturbed and one.what in times
                known = one.model_copy(update={"disturbed": disturbed})
                found.setdefault(one.model, {})[one.what] = known
    return found
