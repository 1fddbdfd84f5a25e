"""Item 10: steps in many micro-batches on 16 servers, beside DDP, FSDP and pipelines there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine.measured import Ask, solve
from benchmarks.engine.parallelisms import (
    NICS,
    PEERS,
    SECONDS,
    cluster_for_cuda,
    variant_file,
)
from benchmarks.table import Table, mebibytes, milliseconds
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.peers.compare import peers_of

SERVERS = 16
# Name of a model, its micro-batches and its shards.
STEPS = (("gpt2 64", 16, 1), ("gpt2 64", 16, 16), ("deep transformer 32", 16, 16))
GIGABITS = (20.0, 160.0)


def tables(_: Path | None) -> Iterator[Table]:
    rows = []
    for name, micro_batches, shards in STEPS:
        file = variant_file(name, micro_batches, shards)
        operators = load_graph(file).operator_count
        for gigabits in GIGABITS:
            where = cluster_for_cuda(gigabits, SERVERS)
            # Peers read whole weights.
            whole = load_graph(variant_file(name, micro_batches, 1))
            peers = {row.name: row.step_seconds for row in peers_of([whole], where, print)}
            del whole
            best = min(peers.values(), default=math.inf)
            made = solve(Ask(file, where, sharing="job", time_limit=SECONDS, from_start=True))
            placement = made.placement
            rows.append([
                f"{name}, {micro_batches} x {shards} ({operators}), {gigabits:g}",
                *(milliseconds(peers.get(peer)) for peer in PEERS),
                milliseconds(placement.step_seconds), milliseconds(placement.bound_seconds),
                f"{placement.step_seconds / best:.2f}", f"{made.wall_seconds:.1f}",
                mebibytes(made.peak_memory_bytes),
            ])  # fmt: skip
    yield Table(
        title=f"10. Many micro-batches: {SERVERS} servers x {NICS} NICs",
        columns=(
            "graph batch, parts x shards (operators), Gbit/s", *PEERS, "ours", "bound", "ratio",
            "s", "MiB",
        ),
        rows=rows,
        notes=(
            f"Steps in ms; {SECONDS:g} s from the start of the process, seed 0. s, MiB: the whole "
            "process, with the graph's reading, the check, and the writing of the placement. "
            "Ratio: ours over the best peer.",
        ),
    )  # fmt: skip
