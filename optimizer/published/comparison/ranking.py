"""Ranks the rows of one graph on one cluster: the best step, and how far the others are from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from placewire.optimizer.published.comparison.rows import Row
from placewire.optimizer.published.formulations.papers import PaperName

# Steps within this fraction of each other are ties: the model is not that exact.
TIE = 0.01
# A search that took this part of its time limit was stopped by it: solvers leave some for the rest.
STOPPED = 0.8
# Programs: their solvers prove that there is no placement. What searches has only found none.
_PROVING = frozenset((*get_args(PaperName), "getf-program"))


@dataclass(frozen=True)
class RankedRow:
    """A row among those of its graph and cluster. over_best: its step over the shortest step; gap:
    to the best bound that any row proved. Both are None without a placement that fits."""

    row: Row
    over_best: float | None
    gap: float | None


@dataclass(frozen=True)
class Ranking:
    """All rows of one graph on one cluster. best_seconds: the shortest step of a placement that
    fits."""

    graph: str
    operators: int
    cluster: str
    bound_seconds: float | None
    single_device_seconds: float | None
    best_seconds: float | None
    ranked: tuple[RankedRow, ...]


def rankings(rows: Iterable[Row]) -> list[Ranking]:
    """One ranking per graph and cluster, in the order in which these first appear."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.graph, row.cluster), []).append(row)
    return [_ranking(group) for group in grouped.values()]


def step_of(row: Row) -> float | None:
    """The step under the yardstick; None where nothing was placed, or a memory is exceeded."""
    return row.contended_seconds if row.outcome == "placed" and row.fits else None


def _ranking(rows: Sequence[Row]) -> Ranking:
    steps = [step for row in rows if (step := step_of(row)) is not None]
    bounds = [row.bound_seconds for row in rows if row.bound_seconds is not None]
    singles = [row.single_device_seconds for row in rows if row.single_device_seconds is not None]
    best, bound = min(steps, default=None), max(bounds, default=None)
    return Ranking(
        rows[0].graph, rows[0].operators, rows[0].cluster, bound, min(singles, default=None), best,
        tuple(_ranked(row, best, bound) for row in rows),
    )  # fmt: skip


def _ranked(row: Row, best: float | None, bound: float | None) -> RankedRow:
    step = step_of(row)
    if step is None:
        return RankedRow(row, None, None)
    gap = None if bound is None else _gap(step, bound)
    return RankedRow(row, step / best if best else 1.0, gap)


def own_gap(row: Row) -> float | None:
    """How far a program's own objective is from the bound that its solver proved, at its end."""
    return _gap(*row.own_found[-1][1:]) if row.own_found else None


def seconds_to_gap(row: Row, gap: float) -> float | None:
    """When a program's solver was first so near to its own bound; None: never, or no program."""
    return next((at for at, step, bound in row.own_found if _gap(step, bound) <= gap), None)


def stopped_by_the_clock(row: Row) -> bool:
    """Whether more time might have given it a placement, or a better one."""
    if row.outcome in ("out of time", "overran"):
        return True
    if row.outcome in ("refused", "broken"):
        return False
    if row.outcome == "infeasible" and row.engine in _PROVING:
        return False
    gap = own_gap(row)
    if gap is not None and gap <= row.gap:
        return False
    return row.search_seconds >= STOPPED * row.limit_seconds


def _gap(step: float, bound: float) -> float:
    return max(0.0, 1.0 - bound / step) if step > 0 else 0.0


def seconds_until(row: Row, step_seconds: float) -> float | None:
    """When the row's search first knew a step as short as that, or a tie; None: never. Only for a
    method that searches under the yardstick itself."""
    limit = step_seconds * (1.0 + TIE)
    return next((seconds for seconds, step in row.found if step <= limit), None)
