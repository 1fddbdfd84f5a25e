"""Items 2 and 3: the certified gap on the graph as given, and how soon plan and bound are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine.measured import Ask, Result, solve
from benchmarks.engine.setting import captured_file, cluster, layered_file
from benchmarks.table import Table, mebibytes, milliseconds
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.graph_file import load_graph

SMALL_LIMIT_SECONDS, LARGE_LIMIT_SECONDS, FREE_LIMIT_SECONDS = 15.0, 60.0, 20.0
LARGEST = 50_000
COLUMNS = ("one ms", "step ms", "bound ms", "gap", "1st<10% s", "of all", "<3% s", "wall s")
NOTES = (
    "1st<10%: when the plan was first within 10 % of the bound; <3%: when the gap first was at "
    "most 3 %; both from the engine's start.",
    "of all: 1st<10% from the start of the process, with its imports and the graph's reading.",
)


def small_tables(_: Path | None) -> Iterator[Table]:
    rows = []
    for name in ("alexnet", "vgg16"):
        for gigabits in (20.0, 160.0):
            for model in ("thesis", "contended"):
                ask = Ask(
                    captured_file(name), cluster(gigabits), "auto", "strict", model=model,
                    time_limit=SMALL_LIMIT_SECONDS,
                )  # fmt: skip
                rows.append([f"{name}, {gigabits:g} Gbit/s, {model}", *cells(solve(ask))])
    yield Table(
        title=f"2. Certified gap in {SMALL_LIMIT_SECONDS:g} s, strict, 4 servers x 3 NICs",
        columns=("graph, rate per NIC, model", *COLUMNS),
        rows=rows,
        notes=NOTES,
    )


def cells(result: Result) -> list[str]:
    """A cell for each of COLUMNS."""
    placement = result.placement
    return [
        milliseconds(placement.single_device_seconds), milliseconds(placement.step_seconds),
        milliseconds(placement.bound_seconds), f"{placement.gap:.1%}",
        first_within(result, placement.bound_seconds, 0.10),
        first_within(result, placement.bound_seconds, 0.10, result.startup_seconds),
        first_within(result, None, 0.03), f"{result.engine_seconds:.1f}",
    ]  # fmt: skip


def first_within(result: Result, bound: float | None, gap: float, before: float = 0.0) -> str:
    """Seconds, `before` added, until the incumbent is within `gap` of `bound`, or where that is
    None of the bound known then."""
    for seconds, incumbent, known in result.trace:
        if incumbent > 0 and 1 - (bound or known) / incumbent <= gap:
            return f"{before + seconds:.2f}"
    return "-"


def large_tables(_: Path | None) -> Iterator[Table]:
    files = [(n, captured_file(n)) for n in ("bert", "gpt2", "deep_transformer")]
    files.append((f"layered {LARGEST}", layered_file(LARGEST)))
    rows = []
    for name, file in files:
        operators = load_graph(file).operator_count
        for gigabits in (20.0, 160.0):
            own = _large(file, cluster(gigabits), "auto")
            placement = own.placement
            heft = _large(file, cluster(gigabits), "heft").placement
            quick = cluster(gigabits * 1e6).model_copy(update={"setup_latency_seconds": 0.0})
            free = _large(file, quick, "auto", FREE_LIMIT_SECONDS).placement
            rows.append([
                f"{name} ({operators}), {gigabits:g}",
                milliseconds(placement.single_device_seconds),
                milliseconds(heft.step_seconds), milliseconds(placement.step_seconds),
                milliseconds(placement.bound_seconds), f"{placement.gap:.1%}",
                milliseconds(free.step_seconds), f"{own.engine_seconds:.0f}",
                mebibytes(own.peak_memory_bytes),
            ])  # fmt: skip
    yield Table(
        title=f"3. Large graphs in {LARGE_LIMIT_SECONDS:g} s, strict, 4 servers x 3 NICs",
        columns=("graph (operators), Gbit/s", "one", "heft", "auto ms", "bound", "gap", "free",
                 "s", "MiB"),
        rows=rows,
        notes=(
            "free: what the same search reaches on a network without cost. Where free is near "
            "the bound, what is left is communication; where it is far, the bound is weak.",
        ),
    )  # fmt: skip


def _large(file: Path, on: Cluster, engine: str, limit: float = LARGE_LIMIT_SECONDS) -> Result:
    return solve(Ask(file, on, engine, "strict", time_limit=limit))
