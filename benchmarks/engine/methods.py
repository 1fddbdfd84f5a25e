"""Item 1: the placement of every method on the same NICs, under what it deploys and under `job`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.against import Outcome, Tally, outcome
from benchmarks.engine.measured import Ask, Result, solve
from benchmarks.engine.setting import (
    CAPTURED,
    GIGABITS,
    Case,
    captured_file,
    cluster,
    published_cases,
)
from benchmarks.table import Table, mebibytes, milliseconds
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.published.comparison.ranking import STOPPED
from placewire.optimizer.published.comparison.rescoring import step_under

# (engine, the sharing that it deploys). P1 and HEFT decide no rates, so that nothing is shaped.
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
# With less, a program could not have all of GPT-2 on one device, and `auto` could.
MEMORY_BYTES = 32 * 2**30
# How a solve ends that found nothing in its time.
_OUT_OF_TIME = ("NoIncumbentError", "OutOfTimeError")
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Scored:
    """deployed, job: step seconds under the sharing that is deployed, and under `job`; None where
    there is no placement."""

    engine: str
    result: Result
    deployed: float | None
    job: float | None


def tables(_: Path | None) -> Iterator[Table]:
    rows: list[list[str]] = []
    tally = Tally("columns of a graph")
    on = cluster(GIGABITS, memory_bytes=MEMORY_BYTES)
    own = [Case(name, captured_file(name), on) for name in CAPTURED]
    for case in [*own, *published_cases()]:
        graph = load_graph(case.file)
        scored = [_scored(case, graph, engine, sharing) for engine, sharing in METHODS]
        _refuse_false_bounds(case.name, scored)
        name = case.name.removeprefix("throughput_").removeprefix("latency_")
        rows.append([f"{name} ({graph.operator_count})", *[""] * 7])
        rows += [_row(entry, scored) for entry in scored]
        for outcomes in _against(scored):
            tally.add(outcomes)
    yield Table(
        title=f"1. Methods on the same NICs: 4 servers x 3 NICs x {GIGABITS:g} Gbit/s",
        columns=("graph (operators)", "deploys", "step ms", "/auto", "job ms", "gap", "s", "MiB"),
        rows=rows,
        notes=(
            f"auto: {AUTO_LIMIT_SECONDS:g} s for all sharings together; thesis P1, P2, P3: own "
            f"model inside, {PUBLISHED_GAP:.0%} gap, {PUBLISHED_LIMIT_SECONDS:g} s.",
            "step: contended, under what the method deploys; job: the same placement under job "
            "sharing (auto: its own search under job).",
            tally.told(),
            f"Devices of our captures have {MEMORY_BYTES / 2**30:g} GiB: P1, P2 and P3 count all "
            "that the operators of a device hold (3.2), 28.4 GiB of GPT-2, where auto counts the "
            "peak.",
        ),
    )


def _scored(case: Case, graph: OperatorGraph, engine: str, sharing: str) -> Scored:
    limit, gap = AUTO_LIMIT_SECONDS, 0.0
    if engine.startswith("thesis"):
        limit, gap = PUBLISHED_LIMIT_SECONDS, PUBLISHED_GAP
    result = solve(Ask(case.file, case.cluster, engine, sharing, time_limit=limit, gap=gap))
    if result.refusal:
        return Scored(engine, result, None, None)
    if engine == "auto":
        return Scored(engine, result, result.placement.step_seconds, result.considered["job"])
    under_job, _ = step_under(graph, result.placement, "contended", "job")
    return Scored(engine, result, result.placement.step_seconds, under_job)


def _row(entry: Scored, scored: list[Scored]) -> list[str]:
    result = entry.result
    wall, peak = f"{result.engine_seconds:.1f}", mebibytes(result.peak_memory_bytes)
    if entry.deployed is None or entry.job is None:
        why = result.refusal.split(":")[0].removesuffix("Error")
        return [f"  {entry.engine}", why, "-", "-", "-", "-", wall, peak]
    auto = scored[0].deployed
    placement = result.placement
    return [
        f"  {entry.engine}", placement.sharing, milliseconds(entry.deployed),
        f"{entry.deployed / auto:.3f}" if auto else "-", milliseconds(entry.job),
        f"{placement.gap:.1%}", wall, peak,
    ]  # fmt: skip


def _refuse_false_bounds(name: str, scored: list[Scored]) -> None:
    """Raises RuntimeError where a step is shorter than a bound: a bound holds for the graph and the
    NICs, whatever the sharing."""
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


def _against(scored: list[Scored]) -> Iterator[list[Outcome]]:
    """Yields, for each column, how auto came out against each other method."""
    auto, others = scored[0], scored[1:]
    for column in ("deployed", "job"):
        yield [
            outcome(getattr(auto, column), getattr(other, column), stopped=_stopped(other))
            for other in others
        ]


def _stopped(entry: Scored) -> bool:
    """Whether more time might have given it a placement, or a better one. Only programs have more
    to do: one device and HEFT are rules."""
    if entry.result.refusal:
        return entry.result.refusal.startswith(_OUT_OF_TIME)
    is_program = entry.engine.startswith("thesis")
    return is_program and entry.result.engine_seconds >= STOPPED * PUBLISHED_LIMIT_SECONDS
