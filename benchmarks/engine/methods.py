"""Item 1: every method's placement on the same NICs, under what it deploys and under `job`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.measured import Ask, Result, solve
from benchmarks.engine.setting import (
    CAPTURED,
    captured_file,
    cluster,
    graph_file,
    graph_of,
)
from benchmarks.graphs import published
from benchmarks.table import Table, mebibytes, milliseconds
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.published.comparison.rescoring import step_under

GIGABITS = 20.0
# (engine, the sharing that it deploys): P1 and HEFT decide no rates, so that nothing is shaped.
METHODS = (
    ("auto", "auto"),
    ("single", "strict"),
    ("heft", "unshaped"),
    ("thesis-p1", "unshaped"),
    ("thesis-p2", "strict"),
    ("thesis-p3", "strict"),
)
PUBLISHED_GAP, PUBLISHED_LIMIT_SECONDS = 0.10, 120.0
AUTO_LIMIT_SECONDS = 60.0
WITHIN = 1.01
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Case:
    name: str
    file: Path
    cluster: Cluster


@dataclass(frozen=True)
class Scored:
    """deployed, job: step seconds under the two sharings; None where there is no placement."""

    engine: str
    result: Result
    deployed: float | None
    job: float | None


def cases() -> Iterator[Case]:
    """msr graphs run on four of their accelerators behind our NICs, Moirai's on their own links."""
    for name in CAPTURED:
        yield Case(name, captured_file(name), cluster(GIGABITS))
    for found in published():
        on = found.cluster
        if found.format == "msr":
            memory = int(found.cluster.memory_bytes.max())
            on = cluster(GIGABITS, device="accelerator", memory_bytes=memory)
        yield Case(found.name, graph_file(found.graph), on)


def table() -> Table:
    rows: list[list[str]] = []
    best = contests = 0
    for case in cases():
        graph = graph_of(case.file)
        scored = [_scored(case, graph, engine, sharing) for engine, sharing in METHODS]
        _refuse_false_bounds(case.name, scored)
        name = case.name.removeprefix("throughput_").removeprefix("latency_")
        rows.append([f"{name} ({graph.operator_count})", *[""] * 7])
        rows += [_row(entry, scored) for entry in scored]
        won, held = _auto_wins(scored)
        best, contests = best + won, contests + held
    return Table(
        title=f"1. Methods on the same NICs: 4 servers x 3 NICs x {GIGABITS:g} Gbit/s",
        columns=(
            "graph (operators)",
            "deploys",
            "step ms",
            "/auto",
            "job ms",
            "gap",
            "s",
            "MiB",
        ),
        rows=rows,
        notes=(
            f"auto: {AUTO_LIMIT_SECONDS:g} s for all sharings together; thesis P1, P2, P3: own "
            f"model inside, {PUBLISHED_GAP:.0%} gap, {PUBLISHED_LIMIT_SECONDS:g} s.",
            "step: contended, under what the method deploys; job: the same placement under job "
            "sharing (auto: its own search under job).",
            f"auto is the best, or within 1 %, in {best} of {contests} columns of a graph. A graph "
            "that no method places counts for none: its buffers do not fit beside its weights.",
        ),
    )


def _scored(case: Case, graph: OperatorGraph, engine: str, sharing: str) -> Scored:
    own = engine.startswith("thesis")
    limit = PUBLISHED_LIMIT_SECONDS if own else AUTO_LIMIT_SECONDS
    ask = Ask(
        case.file,
        case.cluster,
        engine,
        sharing,
        time_limit=limit,
        gap=PUBLISHED_GAP if own else 0.0,
    )
    result = solve(ask)
    if result.refusal:
        return Scored(engine, result, None, None)
    if engine == "auto":
        return Scored(engine, result, result.placement.step_seconds, result.considered["job"])
    placement = result.placement
    under_job, _ = step_under(graph, placement, "contended", "job")
    return Scored(engine, result, placement.step_seconds, under_job)


def _row(entry: Scored, scored: list[Scored]) -> list[str]:
    result = entry.result
    wall, peak = f"{result.engine_seconds:.1f}", mebibytes(result.peak_memory_bytes)
    if entry.deployed is None or entry.job is None:
        why = result.refusal.split(":")[0].removesuffix("Error")
        return [f"  {entry.engine}", why, "-", "-", "-", "-", wall, peak]
    auto = scored[0].deployed
    placement = result.placement
    return [
        f"  {entry.engine}",
        placement.sharing,
        milliseconds(entry.deployed),
        f"{entry.deployed / auto:.3f}" if auto else "-",
        milliseconds(entry.job),
        f"{placement.gap:.1%}",
        wall,
        peak,
    ]


def _refuse_false_bounds(name: str, scored: list[Scored]) -> None:
    """A bound is of the graph and the NICs, whatever the sharing: no step here may be shorter."""
    placed = [entry for entry in scored if entry.deployed is not None and entry.job is not None]
    for proven in placed:
        bound = proven.result.placement.bound_seconds
        for found in placed:
            for step in (found.deployed, found.job):
                if step is not None and step < bound * (1 - _ROUNDING):
                    raise RuntimeError(
                        f"{name}: {proven.engine} proved that no step is shorter than {bound} s, "
                        f"and {found.engine} found one of {step} s"
                    )


def _auto_wins(scored: list[Scored]) -> tuple[int, int]:
    """(columns in which auto is the best or within 1 % of it, columns)."""
    auto, others = scored[0], scored[1:]
    if all(entry.deployed is None for entry in scored):
        return 0, 0
    if auto.deployed is None or auto.job is None:
        return 0, 2
    deployed = min((s.deployed for s in others if s.deployed is not None), default=auto.deployed)
    job = min((s.job for s in others if s.job is not None), default=auto.job)
    return (auto.deployed <= WITHIN * deployed) + (auto.job <= WITHIN * job), 2
