"""Item 3: whether what the papers claim of their methods holds on our graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.engine.setting import captured_file
from benchmarks.methods.field import (
    CAPTURED,
    HAVE,
    MEMORY,
    SERVERS,
    captured_graph,
    grand_cases,
    rows_of,
    servers,
)
from benchmarks.reproduction.printed import Printed
from benchmarks.table import Table, milliseconds
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.comparison.cases import Case, Method, meant_method
from placewire.optimizer.published.comparison.ranking import (
    seconds_until,
    step_of,
    stopped_by_the_clock,
)
from placewire.optimizer.published.comparison.reduction_report import reduction_report
from placewire.optimizer.published.comparison.rows import Row

SCHEMES: tuple[str, ...] = ("thesis", "colocrl", "placeto", "spotlight")
SCHEME_LIMIT_SECONDS, COARSENING_LIMIT_SECONDS = 60.0, 60.0
MOST_LOSS = 0.07
METIS_SERVERS = (2, 4, 8)
# GCOF's rules need the types of captured operators.
COARSENED = ("mlp", "two_towers", "alexnet", "vgg16")
# A reduced graph of fewer operators cannot tell what a reduction does to communication.
LEAST_LEFT = 4
COARSENINGS: tuple[str, ...] = ("none", "gcof-eigen", "gcof-inductor")


def tables(pictures: Path | None) -> Iterator[Table]:
    yield _schemes()
    yield _fusion()
    yield _random_walks()
    yield _partitions()
    yield _coarsening()


def _verdict(claim: str, held: Sequence[bool]) -> str:
    """held: whether the claim holds, for each graph that can tell."""
    if not held:
        return f"{claim}: nothing here can tell."
    if all(held):
        return f"{claim}: holds on all {len(held)} that can tell."
    return f"{claim}: holds on {sum(held)} of {len(held)} that can tell."


def _schemes() -> Table:
    """The reductions on two servers, as in its figure 5.4: what the program itself says."""
    method = Method("thesis-p3-fixed", gap=0.10, time_limit_seconds=SCHEME_LIMIT_SECONDS)
    graphs = [captured_graph(name) for name in ("alexnet", "vgg16", "fnet", "bert")]
    rows, near, sooner, late = [], [], [], []
    for graph in graphs:
        cases = [Case(graph, servers(2), replace(method, reduction=name)) for name in SCHEMES]
        found = dict(zip(SCHEMES, rows_of(cases), strict=True))
        ours, theirs = found["thesis"], found["colocrl"]
        if (loses := _loses_little(ours, theirs)) is not None:
            near.append(loses)
        both = (ours, theirs)
        if all(map(stopped_by_the_clock, both)):
            late.append(graph.name)
        elif all(_ended(row) or stopped_by_the_clock(row) for row in both):
            sooner.append(ours.search_seconds < theirs.search_seconds)
        rows.append([f"{graph.name} ({graph.operators})", *map(_scheme_cell, found.values())])
    return Table(
        title="3. Thesis, figure 5.4 and table 5.2: reduction schemes",
        columns=("graph (operators)", *SCHEMES),
        rows=rows,
        notes=(
            f"thesis-p3-fixed over HiGHS, gap 10 %, {SCHEME_LIMIT_SECONDS:g} s, two servers; its "
            "own objective (ms), of the reduced graph, and seconds.",
            MEMORY,
            _verdict(f"Loses at most {MOST_LOSS:.0%} against ColocRL", near),
            _verdict("In less time than with ColocRL", sooner)
            + (f" The clock ended both on {', '.join(late)}." if late else ""),
        ),
    )


def _loses_little(ours: Row, theirs: Row) -> bool | None:
    """None where more time could change it: what the clock ended can only become shorter."""
    if ours.own_seconds is None or theirs.own_seconds is None:
        return None
    near = ours.own_seconds <= (1 + MOST_LOSS) * theirs.own_seconds
    could_change = stopped_by_the_clock(theirs if near else ours)
    return None if could_change else near


def _scheme_cell(row: Row) -> str:
    if row.own_seconds is None:
        return f"{row.outcome}, {row.search_seconds:.1f}"
    return f"{milliseconds(row.own_seconds)}, {row.search_seconds:.1f}"


def _fusion() -> Table:
    papers = Printed.in_preset("celeritas-table-2").cuts("communication-to-computing ratio")
    rows, held = [], []
    for name in CAPTURED:
        problem = Problem(load_graph(captured_file(name)), servers(SERVERS).cluster)
        found = reduction_report(problem, "celeritas")
        # One or two operators that hold nearly everything send next to nothing.
        if found.operators_after >= LEAST_LEFT:
            held.append(found.ccr_after < found.ccr_before)
        rows.append([
            name, f"{found.operators_before} -> {found.operators_after}",
            f"{found.ccr_before:.2f}", f"{found.ccr_after:.2f}",
            f"{found.ccr_before / found.ccr_after:.1f}" if found.ccr_after else "-",
        ])  # fmt: skip
    return Table(
        title="3. Celeritas, table 2: fusion cuts the communication-to-computing ratio",
        columns=("graph", "operators", "CCR before", "after", "times less"),
        rows=rows,
        notes=(
            _verdict("Fusion cuts the CCR", held),
            f"Celeritas has {papers.least:.2g} to {papers.most:.3g} times less, on finer graphs: "
            f"docs/reproduction.md asks it of decomposed steps. {HAVE}",
        ),
    )


def _random_walks() -> Table:
    """auto against mcmc, in the rows of item 1."""
    rows, held, late = [], [], []
    found = {(row.graph, row.engine): row for row in rows_of(grand_cases())}
    for graph in dict.fromkeys(name for name, _ in found):
        auto, walk = found[graph, "auto"], found[graph, "mcmc"]
        best, step = step_of(auto), step_of(walk)
        if best is None or step is None:
            continue
        took = seconds_until(auto, step)
        sooner = took is not None and took < walk.search_seconds
        # With more time MCMC's step could be shorter, which counts against auto alone.
        if sooner and stopped_by_the_clock(walk):
            late.append(graph)
        else:
            held.append(sooner)
        rows.append(
            [
                f"{graph} ({walk.operators})", milliseconds(best), f"{step / best:.3f}",
                f"{walk.search_seconds:.1f}", "-" if took is None else f"{took:.1f}",
            ]
        )  # fmt: skip
    return Table(
        title="3. Thesis, table 5.1 and figure 5.3: MCMC comes near, later",
        columns=("graph (operators)", "auto ms", "mcmc/auto", "mcmc s", "auto as short s"),
        rows=rows,
        notes=(
            f"mcmc ends after 25,000 steps or at its time limit. {HAVE}",
            _verdict("auto has as short a step before MCMC ends", held)
            + (f" The clock ended MCMC on {', '.join(late)}." if late else ""),
        ),
    )


def _partitions() -> Table:
    rows, held = [], []
    for name in CAPTURED:
        graph, method = captured_graph(name), meant_method(Method("metis"))
        found = rows_of([Case(graph, servers(count), method) for count in METIS_SERVERS])
        ratios = [_over_one(row) for row in found]
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) == len(found):
            held.append(known == sorted(known))
        rows.append([name, *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    return Table(
        title="3. Thesis, section 5.4: Metis' parts wait for each other",
        columns=("graph", *(f"{count} servers" for count in METIS_SERVERS)),
        rows=rows,
        notes=(
            f"Step over that of one device; -: no placement within the memories. {HAVE}",
            _verdict("More servers make Metis' parts slower", held),
        ),
    )


def _over_one(row: Row) -> float | None:
    step, alone = step_of(row), row.single_device_seconds
    return None if step is None or not alone else step / alone


def _coarsening() -> Table:
    rows, sooner, shorter = [], [], []
    method = Method("moirai", gap=0.05, time_limit_seconds=COARSENING_LIMIT_SECONDS)
    for name in COARSENED:
        graph, on = captured_graph(name), servers(SERVERS)
        cases = [Case(graph, on, replace(method, reduction=way)) for way in COARSENINGS]
        plain, *coarse = rows_of(cases)
        for row in coarse:
            if _ended(plain) or _ended(row):
                sooner.append(row.search_seconds < plain.search_seconds)
            elif row.step_seconds is not None and plain.step_seconds is not None:
                shorter.append(row.step_seconds < plain.step_seconds)
        rows.append([f"{graph.name} ({graph.operators})", *map(_coarse_cell, [plain, *coarse])])
    return Table(
        title="3. Moirai, table V: GCOF cuts the time of its program",
        columns=("graph (operators)", *COARSENINGS),
        rows=rows,
        notes=(
            f"Seconds and step in ms; CP-SAT, gap 5 %, {COARSENING_LIMIT_SECONDS:g} s. Moirai has "
            f"72 % of the time on average, over Gurobi. {HAVE}",
            _verdict("Where either ended before its time, sooner with GCOF", sooner),
            _verdict("Where neither did, a shorter step with GCOF in that time", shorter),
        ),
    )


def _ended(row: Row) -> bool:
    """Whether the search ended by itself, within its gap."""
    return row.outcome == "placed" and not stopped_by_the_clock(row)


def _coarse_cell(row: Row) -> str:
    step = step_of(row)
    if step is None:
        return f"{row.outcome}, {row.search_seconds:.1f}"
    return f"{row.search_seconds:.1f}, {milliseconds(step)}"
