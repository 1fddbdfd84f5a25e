"""Writes a comparison as text of at most 100 columns, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from placewire.optimizer.published.comparison.ranking import (
    RankedRow,
    Ranking,
    own_gap,
    rankings,
    seconds_to_gap,
)
from placewire.optimizer.published.comparison.rows import Row
from placewire.optimizer.quantities import format_bytes, format_step

COLUMNS = 100
# Columns of the table; where all rows have the same value, it stands once above the table.
_AXES = ("reduction", "model", "seed")
_FIGURES = ("step", "/best", "gap", "search", "memory")
# Of programs; columns of their own where a row is of one. The thesis' solver ends at this gap.
_OWN_FIGURES = ("own", "to 10%")
_TOLD_GAP = 0.10


def table_lines(rows: Sequence[Row]) -> list[str]:
    """The shortest step of each graph and cluster comes first, refusals last. Steps are under
    `contended`, `strict`, whatever the method's own model; memory is the peak of the solving
    process."""
    if not rows:
        return ["nothing was compared"]
    axes = [name for name in _AXES if len({getattr(row, name) for row in rows}) > 1]
    same = [f"{name} {getattr(rows[0], name)}" for name in _AXES if name not in axes]
    head = "steps are simulated under contended, strict; gap: to the best bound that is known"
    if any(row.own_found for row in rows):
        head += (
            "; own: the step by a program's own model, of the graph that it was given; to 10%: "
            "when its solver was within 10% of its own bound"
        )
    lines = textwrap.wrap(head + (f"; all rows: {', '.join(same)}" if same else ""), COLUMNS)
    for ranking in rankings(rows):
        lines += ["", *_lines(ranking, axes)]
    return lines


def _lines(ranking: Ranking, axes: Sequence[str]) -> list[str]:
    known = [f"{ranking.graph} ({ranking.operators} operators) on {ranking.cluster}"]
    if ranking.bound_seconds is not None:
        known.append(f"no step is shorter than {format_step(ranking.bound_seconds)}")
    if ranking.single_device_seconds is not None:
        known.append(f"one device takes {format_step(ranking.single_device_seconds)}")
    placed = sorted(
        (one for one in ranking.ranked if one.over_best is not None),
        key=lambda one: one.over_best or 0.0,
    )
    lines = textwrap.wrap(": ".join([known[0], ", ".join(known[1:])]).rstrip(": "), COLUMNS)
    if placed:
        own = any(one.row.own_found for one in placed)
        figures = (*_FIGURES, *(_OWN_FIGURES if own else ()))
        cells = [("engine", *axes, *figures), *(_cells(one, axes, own) for one in placed)]
        lines += [f"  {line}" for line in aligned(cells, 1 + len(axes))]
    for one in ranking.ranked:
        if one.over_best is None:
            lines += textwrap.wrap(_unplaced(one.row, axes), COLUMNS, initial_indent="  ",
                                   subsequent_indent="      ")  # fmt: skip
    return lines


def _cells(one: RankedRow, axes: Sequence[str], own: bool) -> tuple[str, ...]:
    """own: with the figures of programs."""
    row = one.row
    assert row.contended_seconds is not None
    late = "" if row.in_time else "!"
    return (
        row.engine,
        *(str(getattr(row, axis)) for axis in axes),
        format_step(row.contended_seconds),
        f"{one.over_best:.3f}",
        "-" if one.gap is None else f"{one.gap:.1%}",
        f"{late}{row.search_seconds:.1f} s",
        format_bytes(row.peak_memory_bytes),
        *(_own_cells(row) if own else ()),
    )


def _own_cells(row: Row) -> tuple[str, str]:
    reached = seconds_to_gap(row, _TOLD_GAP)
    return (
        "-" if row.own_seconds is None else format_step(row.own_seconds),
        "-" if reached is None else f"{reached:.1f} s",
    )


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """The rows as lines; the first `left` columns are aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if k < left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _unplaced(row: Row, axes: Sequence[str]) -> str:
    axis = ", ".join(str(getattr(row, name)) for name in axes)
    method = f"{row.engine} ({axis})" if axis else row.engine
    took = f"{row.search_seconds:.1f} s"
    if row.outcome == "placed":
        return f"{method}: placed in {took}, but under contended a memory is exceeded"
    return f"{method}: {row.outcome} after {took}: {row.why}"


def figures(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Every field of each row but what was found meanwhile, with over_best, the gap to the best
    bound, and a program's own objective, bound and gap."""
    return [
        {
            **one.row.model_dump(mode="json", exclude={"found", "own_found"}),
            "own_seconds": one.row.own_seconds,
            "own_bound_seconds": one.row.own_bound_seconds,
            "own_gap": own_gap(one.row),
            "own_gap_of_10_percent_seconds": seconds_to_gap(one.row, _TOLD_GAP),
            "best_bound_seconds": ranking.bound_seconds,
            "over_best": one.over_best,
            "gap_to_bound": one.gap,
            "in_time": one.row.in_time,
        }
        for ranking in rankings(rows)
        for one in ranking.ranked
    ]


def csv_text(rows: Iterable[Row]) -> str:
    """One line per row; the cell of a missing value is empty."""
    found = figures(rows)
    text = io.StringIO()
    if found:
        writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    return text.getvalue()
