"""Item 7: a profile and one rank on a CUDA device; without such a device there is no table."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import torch

from benchmarks.job.memory import profiled
from benchmarks.table import Table, milliseconds
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement
from tests.job.ranks import run_ranks
from tests.placements import cluster_of, placement_of

DEVICE_TYPE = "gpu"
CASES = (("alexnet", 128), ("bert", 64))
STEPS = 50


def tables(pictures: Path | None) -> Iterable[Table]:
    if not torch.cuda.is_available():
        print("item 7 is skipped: torch finds no CUDA device", file=sys.stderr)
        return
    yield Table(
        title="7. One rank on a CUDA device",
        columns=("model, batch", "operators' sum ms", "step ms", "sum off by", "a rank's step ms"),
        rows=[_row(name, batch) for name, batch in CASES],
        notes=(
            f"{torch.cuda.get_device_name()}, AdamW. The sum of the operators' medians by CUDA "
            "events, and the median step without them, of `optimizer profile` (5 steps to warm "
            f"up, 45 samples); the median of a rank's last {STEPS - 5} of {STEPS} steps.",
        ),
    )


def alone(graph: OperatorGraph, device_type: str) -> Placement:
    """The graph on one device of this type, under NCCL."""
    cluster = cluster_of(1)
    (server,) = cluster.servers
    device = server.devices[0].model_copy(update={"type": device_type, "memory_bytes": 1 << 40})
    servers = (server.model_copy(update={"devices": (device,)}),)
    cluster = cluster.model_copy(update={"servers": servers})
    placement = placement_of(graph, cluster, dict.fromkeys(graph.ids, "s1/0"))
    return placement.model_copy(update={"backend": "nccl", "sharing": "unshaped"})


def _row(name: str, batch: int) -> Sequence[str]:
    model = f"placewire.examples.models.{name}:training_step"
    with tempfile.TemporaryDirectory() as folder:
        graph = profiled(model, batch, Path(folder), ("--device-type", DEVICE_TYPE))
        fields = {"kind": "placed", "model": model, "batch": batch, "steps": STEPS}
        placement = alone(graph, DEVICE_TYPE)
        (rank,) = run_ranks(
            placement, Path(folder), (), 600, forked=False, backend="nccl", **fields
        )
    total, whole = (graph.notes[f"{key}_seconds"] for key in ("sum_of_medians", "whole_step"))
    return (
        f"{name}, {batch}", milliseconds(total), milliseconds(whole), f"{total / whole - 1:+.1%}",
        milliseconds(median(rank.step_seconds[5:])),
    )  # fmt: skip
