"""The graphs and clusters on which all methods are compared, and the rows of their results."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from benchmarks.engine.measured import CACHE
from benchmarks.engine.setting import GIGABITS, captured_file, cluster, published_cases
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.published.comparison.cases import (
    Case,
    ComparedCluster,
    ComparedGraph,
    Method,
    crossed,
    read_graph,
)
from placewire.optimizer.published.comparison.rows import Row, RowsFile
from placewire.optimizer.published.comparison.running import compare

# Our captures, the small ones first.
CAPTURED = (
    "alexnet", "vgg16", "resnet50", "inception", "two_towers", "fnet", "bert", "gpt2",
)  # fmt: skip
SERVERS, NICS = 4, 3
LIMIT_SECONDS = 20.0
MEMORY_GIB = 32
HAVE = f"Devices of our captures have {MEMORY_GIB} GiB."
MEMORY = (
    f"{HAVE} A program counts all that the operators of a device hold (3.2), 28.4 GiB of GPT-2, "
    "where others count the peak: with less, it could not have it on one device, and they could."
)


def servers(count: int) -> ComparedCluster:
    on = cluster(GIGABITS, servers=count, nics=NICS, memory_bytes=MEMORY_GIB * 2**30)
    return ComparedCluster(_name(count), on)


def _name(count: int) -> str:
    return f"{count} x {NICS} x {GIGABITS:g} Gbit/s"


def captured_graph(name: str) -> ComparedGraph:
    return read_graph(captured_file(name), name)


def settings() -> Iterable[tuple[ComparedGraph, ComparedCluster]]:
    """Our captures on our servers, then the published graphs."""
    for name in CAPTURED:
        yield captured_graph(name), servers(SERVERS)
    for case in published_cases():
        name = case.name.removeprefix("throughput_").removeprefix("latency_")
        on = _name(SERVERS) if case.cluster.rails else "its own devices"
        yield read_graph(case.file, name), ComparedCluster(on, case.cluster)


def grand_cases() -> list[Case]:
    """Every engine on every graph, graph by graph; searches take all their time, the gap being
    0."""
    methods = [Method(engine, time_limit_seconds=LIMIT_SECONDS) for engine in ENGINES.names]
    return [case for graph, on in settings() for case in crossed([graph], [on], methods)]


def rows_of(cases: Iterable[Case]) -> list[Row]:
    """The rows of these cases; solves those that are not kept yet."""
    with RowsFile(CACHE / "methods" / "rows.jsonl") as file:
        return compare(cases, file, lambda line: print(line, file=sys.stderr, flush=True))
