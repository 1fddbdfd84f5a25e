"""Item 1: every engine on every graph, and whether `auto` is the best and the first to be so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.against import Tally, outcome
from benchmarks.methods.field import LIMIT_SECONDS, MEMORY, grand_cases, rows_of
from benchmarks.methods.own import own_cells
from benchmarks.table import Table, mebibytes, milliseconds
from placewire.optimizer.published.comparison.plots import draw
from placewire.optimizer.published.comparison.ranking import (
    TIE,
    Ranking,
    rankings,
    seconds_until,
    step_of,
    stopped_by_the_clock,
)
from placewire.optimizer.published.comparison.reasons import Reasons
from placewire.optimizer.published.comparison.rows import Row

# For fewer operators a simple rule may well be as good as a search, and is sooner.
LARGE = 1_000


def tables(pictures: Path | None) -> Iterator[Table]:
    rows = rows_of(grand_cases())
    found = rankings(rows)
    drawn = [] if pictures is None else draw(rows, pictures)
    names = [file.replace(file.with_name(f"methods-{file.name}")).name for file in drawn]
    yield _against(found, [f"![{name}]({name})" for name in names])
    yield _all(found)


def _against(found: list[Ranking], drawn: list[str]) -> Table:
    rows, notes, soonest, large, tally = [], [], 0, 0, Tally("graphs")
    for ranking in found:
        auto = next(one for one in ranking.ranked if one.row.engine == "auto")
        tally.add(
            outcome(step_of(auto.row), step_of(one.row), stopped=stopped_by_the_clock(one.row))
            for one in ranking.ranked
            if one is not auto
        )
        near = [
            one.row
            for one in ranking.ranked
            if one.over_best is not None and one.over_best <= 1 + TIE
        ]
        others, wins = [row for row in near if row is not auto.row], auto.row in near
        sooner = [
            rival
            for rival in others
            if (took := _until(auto.row, rival)) is None or took > rival.search_seconds
        ]
        # A search that the clock ended may have been as near before its end, so that auto does not
        # count as sooner than it.
        rivals = [row for row in others if row in sooner or not stopped_by_the_clock(row)]
        can, is_large = ranking.best_seconds is not None, ranking.operators > LARGE
        large += can and is_large
        soonest += can and is_large and not sooner
        first = min(rivals, key=lambda row: row.search_seconds, default=None)
        took = _until(auto.row, auto.row if first is None else first)
        late = is_large and bool(sooner)
        mark = "no fit" if not can else "worse" if not wins else "later" if late else ""
        rows.append([
            f"{ranking.graph} ({ranking.operators})",
            "-" if ranking.best_seconds is None else milliseconds(ranking.best_seconds),
            "-" if auto.over_best is None else f"{auto.over_best:.3f}",
            "-" if auto.gap is None else f"{auto.gap:.1%}",
            "none" if first is None else f"{first.engine} {first.search_seconds:.1f}",
            "-" if took is None else f"{took:.1f}", mark,
        ])  # fmt: skip
        notes += _why(ranking, auto.row, wins, sooner)
    told = (
        f"{tally.told()} {len(found)} graphs were tried. Of the {large} with more than {LARGE} "
        "operators that any method places, auto had a step within 1 % of the best on "
        f"{soonest} sooner than every method that came that near, but for those that the clock "
        "ended.",
        "rival: the fastest other method whose step is within 1 % of the best, and its seconds "
        "(one that the clock ended counts only where it was sooner than auto); auto s: when auto "
        "first knew a placement as short as the rival's. auto is given "
        f"{LIMIT_SECONDS:g} s, gap 0 %, and uses them all where its bound stays below its step.",
        MEMORY,
    )
    return Table(
        title="1. Auto against every method of the catalogue",
        columns=("graph (operators)", "best ms", "auto/best", "gap", "rival", "auto s", ""),
        rows=rows,
        notes=(*told, *notes, *drawn),
    )


def _until(auto: Row, rival: Row) -> float | None:
    """When auto first knew a step as short as the rival's; None where it never did."""
    step = step_of(rival)
    return None if step is None else seconds_until(auto, step)


def _why(ranking: Ranking, auto: Row, wins: bool, sooner: list[Row]) -> list[str]:
    """The reasons for a row's mark."""
    notes = []
    if not wins:
        if ranking.best_seconds is None:
            notes.append(f"{ranking.graph}: no method places it. auto: {auto.why.split('. ')[0]}.")
        else:
            best = next(one.row for one in ranking.ranked if one.over_best == 1.0)
            notes.append(
                f"{ranking.graph}: {best.engine} found {milliseconds(ranking.best_seconds)} ms in "
                f"{best.search_seconds:.1f} s; auto's search ended at its time limit above that."
            )
    if ranking.operators > LARGE and sooner:
        names = ", ".join(f"{row.engine} ({row.search_seconds:.1f} s)" for row in sooner)
        notes.append(
            f"{ranking.graph}: before auto came {names}. They make one placement by a rule; auto "
            "reduces and searches before its first placement of the graph as given."
        )
    return notes


def _all(found: list[Ranking]) -> Table:
    reasons = Reasons()
    rows = []
    for ranking in found:
        bound = "-" if ranking.bound_seconds is None else milliseconds(ranking.bound_seconds)
        alone = ranking.single_device_seconds
        single = "-" if alone is None else milliseconds(alone)
        heading = f"{ranking.graph} ({ranking.operators})"
        rows.append([heading, f"bound {bound}", "", f"one {single}", "", "", "", ""])
        placed = [one for one in ranking.ranked if one.over_best is not None]
        for one in sorted(placed, key=lambda s: s.over_best or 0.0):
            row, step = one.row, step_of(one.row)
            assert step is not None and one.over_best is not None
            rows.append([
                f"  {row.engine}", milliseconds(step), f"{one.over_best:.3f}",
                "-" if one.gap is None else f"{one.gap:.1%}", *_cost(row), *own_cells(row),
            ])  # fmt: skip
        for row in (one.row for one in ranking.ranked if one.over_best is None):
            number = reasons.number(
                f"{row.engine} {row.why}", f"{row.graph}, {row.engine}: {row.why}"
            )
            ended = f"{row.outcome} ({number})"
            rows.append([f"  {row.engine}", ended, "-", "-", *_cost(row), *own_cells(row)])
    return Table(
        title="1. Every method on every graph",
        columns=("graph (operators)", "step ms", "/best", "gap", "s", "MiB", "own ms", "to 10 % s"),
        rows=rows,
        notes=(
            f"{LIMIT_SECONDS:g} s for each; s: from the problem to the checked placement. gap: to "
            "the best bound that any row proved; !: later than its limit and a tenth. own: a "
            "program's own objective, of the graph that it was given; to 10 %: when its solver was "
            "that near to its own bound. Why there is no placement, with the figures of the first "
            "graph of each reason:",
            *reasons.lines,
        ),
    )


def _cost(row: Row) -> tuple[str, str]:
    late = "" if row.in_time else "!"
    return f"{late}{row.search_seconds:.1f}", mebibytes(row.peak_memory_bytes)
