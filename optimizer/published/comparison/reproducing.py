"""Computes the figures of a preset, and shows the paper's beside ours, or why there is none."""

from __future__ import annotations

import csv
import io
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.comparison.captures import NotCapturedError, captured_graph
from placewire.optimizer.published.comparison.cases import (
    Case,
    ComparedCluster,
    ComparedGraph,
    meant_method,
)
from placewire.optimizer.published.comparison.presets.preset import (
    Asked,
    Delays,
    Figure,
    FusedAt,
    Preset,
    Reduced,
    Saved,
    Solved,
)
from placewire.optimizer.published.comparison.ranking import own_gap, seconds_to_gap, step_of
from placewire.optimizer.published.comparison.reasons import Reasons
from placewire.optimizer.published.comparison.reduction_report import (
    ReductionReport,
    critical_path_seconds,
    reduction_report,
)
from placewire.optimizer.published.comparison.rows import Row, RowsFile
from placewire.optimizer.published.comparison.running import Say, compare
from placewire.optimizer.published.comparison.tables import COLUMNS, aligned
from placewire.optimizer.published.reductions.thresholds import thesis_thresholds
from placewire.optimizer.reductions.fusion import fuse
from placewire.optimizer.reductions.merging import operator_delay
from placewire.optimizer.reductions.refusals import ReductionRefusedError


class NoFigureError(ValueError):
    """Says why there is no figure of ours."""


_WHY_NONE = (NoFigureError, NotCapturedError, ReductionRefusedError)


@dataclass(frozen=True)
class Beside:
    """A figure as the paper prints it beside ours, or why there is none."""

    model: str
    what: str
    paper: str
    ours: str
    why: str = ""


def reproduce(preset: Preset, folder: Path, say: Say) -> tuple[list[Beside], list[Row]]:
    """The folder keeps solves in rows.jsonl and graphs in graphs/; what it has is not made again.
    Raises OSError, RowsFileError."""
    with RowsFile(folder / "rows.jsonl") as file:
        finder = _Finder(preset, folder, say)
        rows = compare(finder.cases(), file, say)
        finder.rows = {row.key: row for row in rows}
        return [finder.beside(figure) for figure in preset.figures], rows


class _Finder:
    def __init__(self, preset: Preset, folder: Path, say: Say) -> None:
        self.preset, self.folder, self.say = preset, folder, say
        self.rows: dict[str, Row] = {}
        self.graphs: dict[str, ComparedGraph | NotCapturedError] = {}
        self.report = cache(self._report)

    def cases(self) -> list[Case]:
        """The cases of all figures that take a solve and can be computed, each once."""
        found: dict[str, Case] = {}
        for figure in self.preset.figures:
            for solved in _solves(figure.asked):
                try:
                    case = self._case(figure.model, solved)
                except _WHY_NONE:
                    continue  # `beside` says so for this figure
                found.setdefault(case.key, case)
        return list(found.values())

    def beside(self, figure: Figure) -> Beside:
        try:
            if figure.asked is None:
                raise NoFigureError(figure.why)
            ours = self._ours(figure.model, figure.asked)
        except _WHY_NONE as error:
            return Beside(figure.model, figure.what, figure.paper, "none", str(error))
        return Beside(figure.model, figure.what, figure.paper, ours)

    def _ours(self, model: str, asked: Asked) -> str:
        if isinstance(asked, Solved):
            return _solved(self.rows[self._case(model, asked).key], asked)
        if isinstance(asked, Saved):
            slow, fast = (self._step(model, one) for one in (asked.slow, asked.fast))
            return f"{1 - fast / slow:.1%}"
        if isinstance(asked, Reduced):
            return _reduced(self.report(model, asked.on, asked.reduction), asked)
        problem = self._problem(model, next(iter(self.preset.clusters)))
        return _delays(problem, asked) if isinstance(asked, Delays) else _fused(problem, asked)

    def _graph(self, model: str) -> ComparedGraph:
        preset, folder = self.preset, self.folder / "graphs"
        if model not in self.graphs:
            try:
                self.graphs[model] = captured_graph(
                    model, preset.models[model], preset.devices, folder, self.say
                )
            except NotCapturedError as error:
                self.graphs[model] = error
        found = self.graphs[model]
        if isinstance(found, NotCapturedError):
            raise found
        return found

    def _problem(self, model: str, on: str) -> Problem:
        return Problem(load_graph(self._graph(model).file), self.preset.clusters[on])

    def _report(self, model: str, on: str, reduction: Any) -> ReductionReport:
        problem = self._problem(model, on)
        self.say(f"reducing {model} by {reduction}")
        return reduction_report(problem, reduction)

    def _case(self, model: str, asked: Solved) -> Case:
        method = asked.method
        if method.engine not in ENGINES:
            raise NoFigureError(f"engine {method.engine} is not in the catalogue")
        on = ComparedCluster(asked.on, self.preset.clusters[asked.on])
        return Case(self._graph(model), on, meant_method(method))

    def _step(self, model: str, asked: Solved) -> float:
        row = self.rows[self._case(model, asked).key]
        step = step_of(row)
        if not step:
            raise NoFigureError(f"{row.engine}: {row.outcome}: {row.why}")
        return step


def _solves(asked: Asked | None) -> tuple[Solved, ...]:
    if isinstance(asked, Saved):
        return asked.slow, asked.fast
    return (asked,) if isinstance(asked, Solved) else ()


def _solved(row: Row, asked: Solved) -> str:
    if row.outcome != "placed":
        raise NoFigureError(f"{row.outcome} after {row.search_seconds:.1f} s: {row.why}")
    if asked.figure == "search":
        return f"{row.search_seconds:.3g} s"
    if asked.figure == "solver":
        return _solver_seconds(row)
    step = row.step_seconds if asked.figure == "own" else step_of(row)
    if step is None:
        raise NoFigureError("a memory is exceeded under contended")
    if asked.figure == "speedup":
        alone = row.single_device_seconds
        if not alone or not step:
            raise NoFigureError("no single device can hold the model")
        return f"{alone / step:.2f}x"
    return f"{step * 1e3:.4g} ms"


def _solver_seconds(row: Row) -> str:
    reached, gap = seconds_to_gap(row, row.gap), own_gap(row)
    if reached is not None:
        return f"{reached:.3g} s"
    end = "it says no bound" if gap is None else f"its gap was {gap:.0%}"
    raise NoFigureError(
        f"after {row.search_seconds:.0f} s {row.engine} was not within {row.gap:.0%} of its own "
        f"bound: {end}"
    )


def _reduced(found: ReductionReport, asked: Reduced) -> str:
    if asked.figure == "operators":
        return f"{found.operators_before:,} -> {found.operators_after:,}"
    if asked.figure == "groups":
        return str(found.groups)
    if asked.figure == "seconds":
        return f"{found.wall_seconds:.2g} s"
    if asked.figure == "ccr":
        return f"{found.ccr_before:.3g} -> {found.ccr_after:.3g}"
    return f"{found.critical_path_after_seconds / found.critical_path_before_seconds - 1:+.1%}"


def _delays(problem: Problem, asked: Delays) -> str:
    delays = operator_delay(problem)
    if asked.figure == "heaviest tenth":
        some = np.sort(delays[delays > 0])[::-1]
        heaviest = some[: max(len(some) // 10, 1)]
        return f"{heaviest.sum() / some.sum():.0%}"
    thresholds = thesis_thresholds(delays)
    alpha, beta = thresholds.alpha_seconds, thresholds.beta_seconds
    return f"{(alpha if asked.figure == 'alpha' else beta) * 1e6:.3g} us"


def _fused(problem: Problem, asked: FusedAt) -> str:
    alpha = asked.times_alpha * thesis_thresholds(operator_delay(problem)).alpha_seconds
    small, _ = fuse(problem, alpha)
    longer = critical_path_seconds(small) / critical_path_seconds(problem) - 1
    return f"{longer:+.1%}, {small.graph.operator_count} operators"


def beside_lines(preset: Preset, found: list[Beside]) -> list[str]:
    """A table of at most 100 columns; under it every reason once, in the words of the first figure
    that it stands for."""
    reasons = Reasons()
    cells = [("model", "figure", "paper", "ours")]
    for one in found:
        ours = f"none ({reasons.number(one.why)})" if one.why else one.ours
        cells.append((one.model, one.what, one.paper, ours))
    lines = textwrap.wrap(preset.title, COLUMNS)
    for line in aligned(cells, 2):
        lines += textwrap.wrap(line, COLUMNS, drop_whitespace=False)
    if reasons.lines:
        lines.append("why some figures are missing (like reasons are listed once):")
    for reason in reasons.lines:
        lines += textwrap.wrap(reason, COLUMNS, subsequent_indent="    ")
    lines.append("how the settings differ:")
    for words in preset.differs:
        lines += textwrap.wrap(f"- {words}", COLUMNS, subsequent_indent="  ")
    return lines


def beside_csv(found: list[Beside]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "figure", "paper", "ours", "why"])
    writer.writerows([[one.model, one.what, one.paper, one.ours, one.why] for one in found])
    return text.getvalue()
