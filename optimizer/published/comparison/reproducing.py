"""Computes the figures of a preset, or says why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.comparison.captures import NotCapturedError, captured_graph
from placewire.optimizer.published.comparison.cases import (
    Case,
    ComparedCluster,
    ComparedGraph,
    meant_method,
)
from placewire.optimizer.published.comparison.estimation import part_within
from placewire.optimizer.published.comparison.our_figures import (
    NO_FIGURE,
    Between,
    Ended,
    NoFigureError,
    Ours,
    exact,
)
from placewire.optimizer.published.comparison.presets.preset import (
    Asked,
    Captured,
    Delays,
    Estimated,
    Figure,
    FusedAt,
    Preset,
    Reduced,
    Saved,
    Seeds,
    Solved,
    solves_of,
)
from placewire.optimizer.published.comparison.reduction_report import (
    ReductionReport,
    critical_path_seconds,
    reduction_report,
)
from placewire.optimizer.published.comparison.rows import Row, RowsFile
from placewire.optimizer.published.comparison.running import Say, compare
from placewire.optimizer.published.comparison.solve_figures import (
    milliseconds,
    over_seeds,
    percent,
    saved,
    saved_part,
    solved,
    step_part,
)
from placewire.optimizer.published.reductions.thresholds import thesis_thresholds
from placewire.optimizer.reductions.fusion import fuse
from placewire.optimizer.reductions.merging import operator_delay
from placewire.optimizer.reductions.refusals import ReductionRefusedError

_WHY_NONE = (NoFigureError, NotCapturedError, ReductionRefusedError)


@dataclass(frozen=True)
class Beside:
    """A figure as the paper prints it beside ours, or why there is none. known: ours in seconds, or
    as plain numbers; two of a reduction, before and after."""

    model: str
    what: str
    paper: str
    ours: str
    why: str = ""
    ended: Ended = "itself"
    known: tuple[Between, ...] = ()


def reproduce(
    preset: Preset, folder: Path, say: Say, rows_file: str = "rows.jsonl"
) -> tuple[list[Beside], list[Row]]:
    """The folder keeps solves in the file of rows and graphs in graphs/; what it has is not made
    again. Raises OSError, RowsFileError."""
    with RowsFile(folder / rows_file) as file:
        finder = _Finder(preset, folder, say)
        rows = compare(finder.cases(), file, say)
        finder.rows = {row.key: row for row in rows}
        return [finder.beside(figure) for figure in preset.figures], rows


class _Finder:
    def __init__(self, preset: Preset, folder: Path, say: Say) -> None:
        self.preset, self.folder, self.say = preset, folder, say
        self.rows: dict[str, Row] = {}
        self.graphs: dict[tuple[str, Captured], ComparedGraph | NotCapturedError] = {}
        self.report = cache(self._report)

    def cases(self) -> list[Case]:
        """The cases of all figures that take a solve and can be computed, each once."""
        found: dict[str, Case] = {}
        for figure in self.preset.figures:
            for one in solves_of(figure.asked):
                try:
                    case = self._case(figure.model, one)
                except _WHY_NONE:
                    continue  # `beside` says so for this figure
                found.setdefault(case.key, case)
        return list(found.values())

    def beside(self, figure: Figure) -> Beside:
        try:
            if figure.asked is None:
                raise NoFigureError(figure.why)
            ours = self._ours(figure.model, figure.asked)
        except NoFigureError as error:
            return Beside(
                figure.model, figure.what, figure.paper, NO_FIGURE, str(error), error.ended,
                error.known,
            )  # fmt: skip
        except _WHY_NONE as error:
            return Beside(figure.model, figure.what, figure.paper, NO_FIGURE, str(error), "none")
        return Beside(figure.model, figure.what, figure.paper, ours.text, "", ours.ended,
                      ours.known)  # fmt: skip

    def _ours(self, model: str, asked: Asked) -> Ours:
        if isinstance(asked, Solved):
            return solved(self.rows[self._case(model, asked).key], asked)
        if isinstance(asked, Seeds):
            rows = [self.rows[self._case(model, one).key] for one in asked.each]
            return over_seeds([partial(step_part, row, asked.solved) for row in rows], milliseconds)
        if isinstance(asked, Saved):
            slow = self._part(model, asked.slow)
            if isinstance(asked.fast, Solved):
                return saved(slow, self._part(model, asked.fast))

            def under(one: Solved) -> tuple[float, Between]:
                return saved_part(slow, self._part(model, one))

            return over_seeds([partial(under, one) for one in asked.fast.each], percent)
        if isinstance(asked, Reduced):
            report = self.report(model, asked.on, asked.reduction, asked.decompose)
            return _reduced(report, asked)
        if isinstance(asked, Estimated):
            return self._estimated(model, asked)
        problem = self._problem(model, next(iter(self.preset.clusters)), asked.decompose)
        return _delays(problem, asked) if isinstance(asked, Delays) else _fused(problem, asked)

    def _estimated(self, model: str, asked: Estimated) -> Ours:
        batch = self.preset.models[model].batch
        small = {
            batch // divisor: load_graph(self._graph(model, batch=batch // divisor).file)
            for divisor in asked.divisors
        }
        try:
            part = part_within(small, load_graph(self._graph(model).file), batch, asked)
        except GraphError as error:
            raise NoFigureError(str(error)) from error
        return Ours(f"{part:.0%}", exact(part))

    def _graph(self, model: str, **otherwise: Any) -> ComparedGraph:
        """otherwise: what is not captured as the model is in the preset."""
        preset, folder = self.preset, self.folder / "graphs"
        captured = replace(preset.models[model], **otherwise)
        if (model, captured) not in self.graphs:
            try:
                self.graphs[model, captured] = captured_graph(
                    model, captured, preset.devices, folder, self.say
                )
            except NotCapturedError as error:
                self.graphs[model, captured] = error
        found = self.graphs[model, captured]
        if isinstance(found, NotCapturedError):
            raise found
        return found

    def _problem(self, model: str, on: str, decompose: bool) -> Problem:
        graph = load_graph(self._graph(model, decompose=decompose).file)
        return Problem(graph, self.preset.clusters[on])

    def _report(self, model: str, on: str, reduction: str, decompose: bool) -> ReductionReport:
        problem = self._problem(model, on, decompose)
        self.say(f"reducing {model} by {reduction}")
        return reduction_report(problem, reduction)

    def _case(self, model: str, asked: Solved) -> Case:
        method = asked.method
        if method.engine not in ENGINES:
            raise NoFigureError(f"engine {method.engine} is not in the catalogue")
        on = ComparedCluster(asked.on, self.preset.clusters[asked.on])
        return Case(self._graph(model), on, meant_method(method))

    def _part(self, model: str, asked: Solved) -> Between:
        """What is known of a step that is part of another figure."""
        row = self.rows[self._case(model, asked).key]
        try:
            return step_part(row, asked)[1]
        except NoFigureError as error:
            ended: Ended = "clock" if error.ended == "clock" else "none"
            raise NoFigureError(f"{row.engine}: {error}", ended) from error


def _reduced(found: ReductionReport, asked: Reduced) -> Ours:
    if asked.figure == "operators":
        before, after = found.operators_before, found.operators_after
        return Ours(f"{before:,} -> {after:,}", exact(before, after))
    if asked.figure == "groups":
        return Ours(str(found.groups), exact(found.groups))
    if asked.figure == "seconds":
        return Ours(f"{found.wall_seconds:.2g} s", exact(found.wall_seconds))
    if asked.figure == "ccr":
        ratios = found.ccr_before, found.ccr_after
        return Ours(f"{ratios[0]:.3g} -> {ratios[1]:.3g}", exact(*ratios))
    longer = found.critical_path_after_seconds / found.critical_path_before_seconds - 1
    return Ours(f"{longer:+.1%}", exact(longer))


def _delays(problem: Problem, asked: Delays) -> Ours:
    delays = operator_delay(problem)
    if asked.figure == "heaviest tenth":
        some = np.sort(delays[delays > 0])[::-1]
        heaviest = some[: max(len(some) // 10, 1)]
        part = float(heaviest.sum() / some.sum())
        return Ours(f"{part:.0%}", exact(part))
    thresholds = thesis_thresholds(delays)
    delay = thresholds.alpha_seconds if asked.figure == "alpha" else thresholds.beta_seconds
    return Ours(f"{delay * 1e6:.3g} us", exact(delay))


def _fused(problem: Problem, asked: FusedAt) -> Ours:
    alpha = asked.times_alpha * thesis_thresholds(operator_delay(problem)).alpha_seconds
    small, _ = fuse(problem, alpha)
    longer = critical_path_seconds(small) / critical_path_seconds(problem) - 1
    left = small.graph.operator_count
    return Ours(f"{longer:+.1%}, {left} operators", exact(longer, left))
