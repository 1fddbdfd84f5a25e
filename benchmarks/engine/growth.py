"""Item 4: time and memory by numbers of operators and servers, and evaluations per second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.measured import Ask, solve
from benchmarks.engine.plain import list_schedule
from benchmarks.engine.setting import GIGABITS, captured_file, cluster, layered_file
from benchmarks.table import Table, mebibytes
from placewire.optimizer.engines.scoring import score
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.units import typical_transfer_seconds, upward_rank
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.kernels.simulation.first_come import NOT_CHANGED, run_first_come
from placewire.optimizer.kernels.simulation.occupation import occupation
from placewire.optimizer.kernels.simulation.transfers import channel_rates, device_traffic
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import starting_rates

OPERATORS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
SERVERS = (2, 4, 8, 16, 32)
AT_OPERATORS, AT_SERVERS = 5_000, 4
MOVES = 5_000


def tables(pictures: Path | None) -> Iterator[Table]:
    by_operators = [(n, _solved(n, AT_SERVERS)) for n in OPERATORS]
    by_servers = [(s, _solved(AT_OPERATORS, s)) for s in SERVERS]
    rows = [[f"{n} operators, {AT_SERVERS} servers", *_cells(r)] for n, r in by_operators]
    rows += [[f"{AT_OPERATORS} operators, {s} servers", *_cells(r)] for s, r in by_servers]
    notes = ["Synthetic layered training graphs; the number of moves is the same on every row."]
    if pictures is not None:
        _draw(by_operators, by_servers, pictures / "engine-growth.png")
        notes.append("![engine-growth](engine-growth.png)")
    yield Table(
        title=f"4. Growth: auto, strict, {MOVES} moves",
        columns=("graph and cluster", "engine s", "whole process s", "peak MiB", "step/one", "gap"),
        rows=rows,
        notes=notes,
    )
    files = (captured_file("alexnet"), captured_file("bert"), layered_file(10_000))
    yield Table(
        title="4. Full evaluations per second (one core; both give the same step time)",
        columns=(
            "graph (operators)", "compiled", "plain Python", "ratio", "with memory and messages",
        ),
        rows=[_rates_of(file) for file in files],
    )  # fmt: skip


def _solved(operators: int, servers: int):
    on = cluster(GIGABITS, servers=servers)
    return solve(Ask(layered_file(operators), on, "auto", "strict", moves=MOVES))


def _cells(result) -> list[str]:
    placement = result.placement
    alone = placement.single_device_seconds
    return [
        f"{result.engine_seconds:.1f}", f"{result.wall_seconds:.1f}",
        mebibytes(result.peak_memory_bytes),
        f"{placement.step_seconds / alone:.3f}" if alone else "-", f"{placement.gap:.1%}",
    ]  # fmt: skip


def _draw(by_operators, by_servers, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    labels = ("operators (4 servers)", f"servers ({AT_OPERATORS} operators)")
    for axis, points, label in zip(axes, (by_operators, by_servers), labels, strict=True):
        x = [n for n, _ in points]
        axis.plot(x, [r.engine_seconds for _, r in points], "o-", color="tab:blue", label="seconds")
        axis.set(xscale="log", xlabel=label, ylabel="seconds", ylim=(0, None))
        axis.set_xticks(x, [str(n) for n in x])
        axis.minorticks_off()
        memory = axis.twinx()
        peaks = [r.peak_memory_bytes / 2**20 for _, r in points]
        memory.plot(x, peaks, "s--", color="tab:orange", label="MiB")
        memory.set(ylabel="peak MiB", ylim=(0, None))
        axis.grid(visible=True, alpha=0.3)
    figure.suptitle(f"auto, strict, {MOVES} moves: time (solid) and memory (dashed)")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _rates_of(file: Path) -> list[str]:
    """Simulations per second: the compiled simulation against a list scheduler in plain Python."""
    graph = load_graph(file)
    problem = Problem(graph, cluster(GIGABITS))
    n, m = graph.operator_count, graph.tensor_count
    device = np.random.default_rng(0).integers(0, 4, n)
    rank = upward_rank(problem, typical_transfer_seconds(problem))
    rates = starting_rates(problem, device)
    tables = tables_of(problem)
    room = np.empty(n), np.empty(n), np.empty(m), np.empty(n, dtype=np.int64)

    not_changed: tuple[Any, ...] = NOT_CHANGED

    def compiled() -> float:
        channels = channel_rates(tables, device_traffic(tables, device), rates)
        step, _, _ = run_first_come(
            tables, occupation(tables, device), device, rank, channels, False, None, *room, None,
            *not_changed,
        )  # fmt: skip
        return step

    plain = partial(list_schedule, problem, device, rank, rates)
    whole = partial(score, problem, Solution(device, rank, rates), optimise_rates=False)
    assert abs(compiled() - plain()) <= 1e-9 * plain()
    fast, slow = _per_second(compiled), _per_second(plain)
    return [
        f"{graph.name} ({n})", f"{fast:.0f}", f"{slow:.1f}", f"{fast / slow:.0f} x",
        f"{_per_second(whole):.0f}",
    ]  # fmt: skip


def _per_second(call) -> float:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < 1.0 or count < 2:
        call()
        count += 1
    return count / (time.perf_counter() - began)
