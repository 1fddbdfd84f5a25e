"""The graphs and clusters on which all methods are compared, and their rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from benchmarks.engine.measured import CACHE
from benchmarks.engine.setting import captured_file, cluster, graph_file
from benchmarks.graphs import published
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

# Our captures, the small ones first; the published graphs come after them.
CAPTURED = (
    "alexnet", "vgg16", "resnet50", "inception", "two_towers", "fnet", "bert", "gpt2",
)  # fmt: skip
SERVERS, NICS, GIGABITS = 4, 3, 20.0
LIMIT_SECONDS = 20.0


def servers(count: int, **more: Any) -> ComparedCluster:
    name = f"{count} x {NICS} x {GIGABITS:g} Gbit/s"
    return ComparedCluster(name, cluster(GIGABITS, servers=count, nics=NICS, **more))


def captured_graph(name: str) -> ComparedGraph:
    return read_graph(captured_file(name), name)


def settings() -> Iterable[tuple[ComparedGraph, ComparedCluster]]:
    """msr graphs run on four of their accelerators behind our NICs, Moirai's on their own links."""
    for name in CAPTURED:
        yield captured_graph(name), servers(SERVERS)
    for found in published():
        name = found.name.removeprefix("throughput_").removeprefix("latency_")
        on = ComparedCluster("its own devices", found.cluster)
        if found.format == "msr":
            memory = int(found.cluster.memory_bytes.max())
            on = servers(SERVERS, device="accelerator", memory_bytes=memory)
        yield read_graph(graph_file(found.graph), name), on


def grand_cases() -> list[Case]:
    """Every engine, graph by graph; gap 0, so that a search takes the time that it has."""
    methods = [Method(engine, time_limit_seconds=LIMIT_SECONDS) for engine in ENGINES.names]
    return [case for graph, on in settings() for case in crossed([graph], [on], methods)]


def rows_of(cases: Iterable[Case]) -> list[Row]:
    """Solves what is not kept yet."""
    with RowsFile(CACHE / "methods" / "rows.jsonl") as file:
        return compare(cases, file, lambda line: print(line, file=sys.stderr, flush=True))
