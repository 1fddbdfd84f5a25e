"""Computes the figures of a preset, or says why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Literal

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
from placewire.optimizer.published.comparison.presets.preset import (
    EVALUATION_STEPS,
    Asked,
    Delays,
    Estimated,
    Figure,
    FusedAt,
    Preset,
    Reduced,
    Saved,
    Seeds,
    Solved,
)
from placewire.optimizer.published.comparison.ranking import (
    own_gap,
    seconds_to_gap,
    step_of,
    stopped_by_the_clock,
)
from placewire.optimizer.published.comparison.reduction_report import (
    ReductionReport,
    critical_path_seconds,
    reduction_report,
)
from placewire.optimizer.published.comparison.rows import Row, RowsFile
from placewire.optimizer.published.comparison.running import Say, compare
from placewire.optimizer.published.reductions.thresholds import thesis_thresholds
from placewire.optimizer.reductions.fusion import fuse
from placewire.optimizer.reductions.merging import operator_delay
from placewire.optimizer.reductions.refusals import ReductionRefusedError

# Shown where there is no figure of ours.
NO_FIGURE = "none"
# itself: the figure is final. clock: more time might have given another one. unplaced: the method
# has no placement within the memories. none: there can be no figure.
Ended = Literal["itself", "clock", "unplaced", "none"]


@dataclass(frozen=True)
class Between:
    """What is known of a number."""

    low: float
    high: float


class NoFigureError(ValueError):
    """Says why there is no figure of ours, and what is known of it all the same."""

    def __init__(self, why: str, ended: Ended = "none", *known: Between) -> None:
        super().__init__(why)
        self.ended: Ended = ended
        self.known = known


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


@dataclass(frozen=True)
class _Ours:
    text: str
    known: tuple[Between, ...]
    ended: Ended = "itself"


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
        self.graphs: dict[tuple[str, int | None], ComparedGraph | NotCapturedError] = {}
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
        except NoFigureError as error:
            return Beside(
                figure.model, figure.what, figure.paper, NO_FIGURE, str(error), error.ended,
                error.known,
            )  # fmt: skip
        except _WHY_NONE as error:
            return Beside(figure.model, figure.what, figure.paper, NO_FIGURE, str(error), "none")
        return Beside(figure.model, figure.what, figure.paper, ours.text, "", ours.ended,
                      ours.known)  # fmt: skip

    def _ours(self, model: str, asked: Asked) -> _Ours:
        if isinstance(asked, Solved):
            return _solved(self.rows[self._case(model, asked).key], asked)
        if isinstance(asked, Seeds):
            rows = [self.rows[self._case(model, one).key] for one in asked.each]
            known = [_solved(row, asked.solved).known[0] for row in rows]
            return _spread([one.high for one in known], known, _milliseconds)
        if isinstance(asked, Saved):
            slow = self._stepped(model, asked.slow)
            fast = [self._stepped(model, one) for one in _each(asked.fast)]
            if isinstance(asked.fast, Seeds):
                return _saved_over_seeds(slow, fast)
            return _saved(slow, fast[0], on_equal_terms=asked.slow.method == asked.fast.method)
        if isinstance(asked, Reduced):
            return _reduced(self.report(model, asked.on, asked.reduction), asked)
        if isinstance(asked, Estimated):
            return self._estimated(model, asked)
        problem = self._problem(model, next(iter(self.preset.clusters)))
        return _delays(problem, asked) if isinstance(asked, Delays) else _fused(problem, asked)

    def _estimated(self, model: str, asked: Estimated) -> _Ours:
        batch = self.preset.models[model].batch
        small = {
            batch // divisor: load_graph(self._graph(model, batch // divisor).file)
            for divisor in asked.divisors
        }
        try:
            part = part_within(small, load_graph(self._graph(model).file), batch, asked)
        except GraphError as error:
            raise NoFigureError(str(error)) from error
        return _Ours(f"{part:.0%}", _exact(part))

    def _graph(self, model: str, batch: int | None = None) -> ComparedGraph:
        """batch: another one than the model's own."""
        preset, folder = self.preset, self.folder / "graphs"
        if (model, batch) not in self.graphs:
            captured = preset.models[model]
            captured = captured if batch is None else replace(captured, batch=batch)
            try:
                self.graphs[model, batch] = captured_graph(
                    model, captured, preset.devices, folder, self.say
                )
            except NotCapturedError as error:
                self.graphs[model, batch] = error
        found = self.graphs[model, batch]
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

    def _stepped(self, model: str, asked: Solved) -> Row:
        row = self.rows[self._case(model, asked).key]
        if not step_of(row):
            ended: Ended = "clock" if stopped_by_the_clock(row) else "none"
            raise NoFigureError(f"{row.engine}: {row.outcome}: {row.why}", ended)
        return row


def _solves(asked: Asked | None) -> tuple[Solved, ...]:
    if isinstance(asked, Saved):
        return asked.slow, *_each(asked.fast)
    return _each(asked) if isinstance(asked, Solved | Seeds) else ()


def _each(asked: Solved | Seeds) -> tuple[Solved, ...]:
    return asked.each if isinstance(asked, Seeds) else (asked,)


def _exact(*numbers: float) -> tuple[Between, ...]:
    return tuple(Between(number, number) for number in numbers)


def _solved(row: Row, asked: Solved) -> _Ours:
    late = stopped_by_the_clock(row)
    ended: Ended = "clock" if late else "itself"
    if row.outcome != "placed":
        why = f"{row.outcome} after {row.search_seconds:.1f} s: {row.why}"
        if asked.figure in ("search", "solver"):
            known = (Between(row.search_seconds, inf),) if late else ()
            raise NoFigureError(why, "clock" if late else "none", *known)
        if row.outcome == "infeasible" and asked.figure != "speedup":
            raise _unplaced(why)
        raise NoFigureError(why, "clock" if late else "none")
    if asked.figure == "search":
        took = Between(row.search_seconds, inf if late else row.search_seconds)
        return _Ours(f"{row.search_seconds:.3g} s", (took,), ended)
    if asked.figure == "solver":
        return _solver_seconds(row)
    step = row.step_seconds if asked.figure == "own" else step_of(row)
    if step is None:
        raise _unplaced("a memory is exceeded under contended")
    if asked.figure == "speedup":
        alone = row.single_device_seconds
        if not alone or not step:
            raise NoFigureError("no single device can hold the model")
        gained = Between(alone / step, inf if late else alone / step)
        return _Ours(f"{gained.low:.2f}x", (gained,), ended)
    if asked.figure == "evaluation":
        whole = row.search_seconds + EVALUATION_STEPS * step
        return _Ours(f"{whole / 60:.3g} min", (Between(0.0 if late else whole, whole),), ended)
    return _Ours(_milliseconds(step), (Between(0.0 if late else step, step),), ended)


def _unplaced(why: str) -> NoFigureError:
    return NoFigureError(why, "unplaced", Between(inf, inf))


def _saved(slow: Row, fast: Row, *, on_equal_terms: bool) -> _Ours:
    """on_equal_terms: both are the same method's, with the same time, so that the steps stand as
    they are."""
    saved, known = _saved_part(slow, fast, on_equal_terms=on_equal_terms)
    return _Ours(_percent(saved), (known,), _ended(known))


def _saved_over_seeds(slow: Row, fast: Sequence[Row]) -> _Ours:
    parts = [_saved_part(slow, one, on_equal_terms=False) for one in fast]
    return _spread([saved for saved, _ in parts], [known for _, known in parts], _percent)


def _saved_part(slow: Row, fast: Row, *, on_equal_terms: bool) -> tuple[float, Between]:
    was, now = step_of(slow), step_of(fast)
    assert was is not None and now is not None
    saved = 1 - now / was
    low = high = saved
    if not on_equal_terms:
        low = -inf if stopped_by_the_clock(slow) else saved
        high = 1.0 if stopped_by_the_clock(fast) else saved
    return saved, Between(low, high)


def _spread(
    numbers: Sequence[float], known: Sequence[Between], shown: Callable[[float], str]
) -> _Ours:
    """Of several seeds: the mean, and the standard deviation of the sample."""
    middle = Between(
        float(np.mean([one.low for one in known])), float(np.mean([one.high for one in known]))
    )
    text = f"{shown(float(np.mean(numbers)))} ± {shown(float(np.std(numbers, ddof=1)))}"
    return _Ours(text, (middle,), _ended(middle))


def _ended(known: Between) -> Ended:
    return "itself" if known.low == known.high else "clock"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _percent(part: float) -> str:
    return f"{part:.1%}"


def _solver_seconds(row: Row) -> _Ours:
    reached, gap = seconds_to_gap(row, row.gap), own_gap(row)
    if reached is not None:
        return _Ours(f"{reached:.3g} s", _exact(reached))
    end = "it says no bound" if gap is None else f"its gap was {gap:.0%}"
    raise NoFigureError(
        f"after {row.search_seconds:.0f} s {row.engine} was not within {row.gap:.0%} of its own "
        f"bound: {end}",
        "none" if gap is None else "clock",
        *([] if gap is None else [Between(row.search_seconds, inf)]),
    )


def _reduced(found: ReductionReport, asked: Reduced) -> _Ours:
    if asked.figure == "operators":
        before, after = found.operators_before, found.operators_after
        return _Ours(f"{before:,} -> {after:,}", _exact(before, after))
    if asked.figure == "groups":
        return _Ours(str(found.groups), _exact(found.groups))
    if asked.figure == "seconds":
        return _Ours(f"{found.wall_seconds:.2g} s", _exact(found.wall_seconds))
    if asked.figure == "ccr":
        ratios = found.ccr_before, found.ccr_after
        return _Ours(f"{ratios[0]:.3g} -> {ratios[1]:.3g}", _exact(*ratios))
    longer = found.critical_path_after_seconds / found.critical_path_before_seconds - 1
    return _Ours(f"{longer:+.1%}", _exact(longer))


def _delays(problem: Problem, asked: Delays) -> _Ours:
    delays = operator_delay(problem)
    if asked.figure == "heaviest tenth":
        some = np.sort(delays[delays > 0])[::-1]
        heaviest = some[: max(len(some) // 10, 1)]
        part = float(heaviest.sum() / some.sum())
        return _Ours(f"{part:.0%}", _exact(part))
    thresholds = thesis_thresholds(delays)
    delay = thresholds.alpha_seconds if asked.figure == "alpha" else thresholds.beta_seconds
    return _Ours(f"{delay * 1e6:.3g} us", _exact(delay))


def _fused(problem: Problem, asked: FusedAt) -> _Ours:
    alpha = asked.times_alpha * thesis_thresholds(operator_delay(problem)).alpha_seconds
    small, _ = fuse(problem, alpha)
    longer = critical_path_seconds(small) / critical_path_seconds(problem) - 1
    left = small.graph.operator_count
    return _Ours(f"{longer:+.1%}, {left} operators", _exact(longer, left))
