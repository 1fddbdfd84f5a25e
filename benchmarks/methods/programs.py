"""Item 4: the programs of the thesis and of QuickP over every solver, and `auto`, on equal terms.

Gurobi takes part where it has a full licence; the one that comes with it refuses all but the
smallest programs. Each graph is reduced once, as the thesis reduces it. Every program begins with
the same starts, the best single device and HEFT, and may end 10 % from its own bound; all have the
same time limit: $PLACEWIRE_BENCH_PROGRAM_SECONDS, 60 without it. The papers' solver had minutes:
600 is fairer, and takes a night.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.methods.field import (
    MEMORY,
    NICS,
    SERVERS,
    captured_graph,
    rows_of,
    servers,
)
from benchmarks.methods.own import GAP, own_cells
from benchmarks.table import Table, milliseconds
from placewire.optimizer.published.comparison.cases import Case, Method
from placewire.optimizer.published.comparison.ranking import STOPPED, own_gap, step_of
from placewire.optimizer.published.comparison.reasons import Reasons
from placewire.optimizer.published.comparison.rows import Row
from placewire.optimizer.published.formulations import gurobi
from placewire.optimizer.published.formulations.solver import SolverName

PROGRAMS = ("thesis-p1", "thesis-p2", "thesis-p3", "thesis-p3-fixed", "icc-p1", "icc-p2")
OPEN_SOLVERS: tuple[SolverName, ...] = ("highs", "cp-sat")
GRAPHS = ("alexnet", "vgg16", "fnet", "bert", "gpt2")
REDUCTION = "thesis"
LIMIT_SECONDS = float(os.environ.get("PLACEWIRE_BENCH_PROGRAM_SECONDS", "60"))


def tables(pictures: Path | None) -> Iterator[Table]:
    yield _table([(name, rows_of(cases_of(name))) for name in GRAPHS])


def solvers() -> tuple[SolverName, ...]:
    return (*OPEN_SOLVERS, "gurobi") if gurobi.has_full_licence() else OPEN_SOLVERS


def cases_of(name: str) -> list[Case]:
    """Every program over every solver, then `auto`."""
    graph, on = captured_graph(name), servers(SERVERS)
    methods = [
        Method(program, REDUCTION, gap=GAP, time_limit_seconds=LIMIT_SECONDS, solver=solver)
        for program in PROGRAMS
        for solver in solvers()
    ]
    auto = Method("auto", gap=GAP, time_limit_seconds=LIMIT_SECONDS)
    return [Case(graph, on, method) for method in (*methods, auto)]


def _table(found: list[tuple[str, list[Row]]]) -> Table:
    reasons = Reasons()
    rows = []
    for name, mine in found:
        reduced = next(
            (row.reduced for row in mine if row.reduction == REDUCTION and row.reduced), ""
        )
        rows.append([f"{name} ({mine[0].operators})", reduced, "", "", "", ""])
        rows += [_cells(name, row, reasons) for row in mine]
    return Table(
        title="4. The papers' programs over every solver",
        columns=("graph (operators)", "own ms", "own gap", "to 10 % s", "step ms", "s"),
        rows=rows,
        notes=(
            f"{LIMIT_SECONDS:g} s for each, gap {GAP:.0%}, reduction {REDUCTION} (auto has its own "
            "reductions). own: the program's objective, by its own model of the reduced graph, and "
            "its gap to the bound that its solver proved; step: of the placement of the graph as "
            "given, under contended, strict. s: from the problem to the checked placement. A row "
            f"whose s is {STOPPED:.0%} of that time or more was ended by the clock.",
            f"`thesis-p2` and `thesis-p3` decide the bandwidth of all {NICS} NICs of a server. "
            "To the other programs each pair of servers has the rate of one NIC, as the papers "
            "write them. The step of every placement counts on all NICs.",
            MEMORY,
            *_lengths(found),
            *reasons.lines,
        ),
    )


def _lengths(found: list[tuple[str, list[Row]]]) -> Iterator[str]:
    """How long the steps are beside what the programs say, and beside those of `auto`."""
    said, others = [], []
    for _, mine in found:
        autos = next((step_of(row) for row in mine if row.engine == "auto"), None)
        for row in mine:
            step = step_of(row)
            if step is not None and row.own_seconds is not None:
                said.append(step / row.own_seconds)
                others += [] if autos is None else [step / autos]
    if said and others:
        yield (
            "What a program says by its own model is not what its placement takes where transfers "
            "share NICs and operators run as their inputs come: steps are up to "
            f"{max(said):.1f} times as long as the program says, and {min(others):.1f} to "
            f"{max(others):.1f} times as long as auto's."
        )


def _cells(name: str, row: Row, reasons: Reasons) -> list[str]:
    method = row.engine if row.engine == "auto" else f"{row.engine} {row.solver}"
    step, gap = step_of(row), own_gap(row)
    objective, reached = own_cells(row)
    told = f"{row.search_seconds:.1f}"
    if step is None:
        why = row.why or "a memory is exceeded under contended"
        number = reasons.number(f"{row.solver} {why}", f"{name}, {method}: {why}")
        return [f"  {method}", objective, "-", "-", f"{row.outcome} ({number})", told]
    return [
        f"  {method}", objective, "-" if gap is None else f"{gap:.1%}", reached,
        milliseconds(step), told,
    ]  # fmt: skip
