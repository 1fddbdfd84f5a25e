"""Item 5, memory: the memory of a rank, against that which its placement and the profile predict.

Each model is profiled once, in a process of its own, which measures its workspace and the memory of
the program. It is placed on one device, and on two by one cut along the model; then real ranks
train on loopback. The prediction for tensors is what `optimizer check` recomputes from the
placement.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT
from benchmarks.table import Table
from placewire.optimizer.check.recompute.facts import Facts
from placewire.optimizer.check.recompute.memory import recompute_memory
from placewire.optimizer.check.recompute.times import recompute_times
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement
from placewire.optimizer.published.reductions.topological import dfs_topo
from tests.job.ranks import run_ranks
from tests.placements import cluster_of, placement_of

# (model, batch), under AdamW. The last two have so few tensors that a process's own pages matter.
CASES = (
    ("alexnet:training_step", 128),
    ("vgg16:training_step", 32),
    ("bert:training_step", 8),
    ("gpt2:training_step_small", 64),
    ("bert:training_step_small", 64),
)
STEPS = 5
LIMIT_SECONDS = 1200.0
# About what loopback carries.
RATE_BITS_PER_SECOND = 2e10


@dataclass(frozen=True)
class RankMemory:
    """Bytes of the tensors (predicted, and measured in the steps) and of the program (both again);
    process: the most at any time, the capture included."""

    predicted: int
    steps: int
    predicted_program: int
    program: int
    process: int

    @property
    def error(self) -> float:
        return self.steps / self.predicted - 1

    @property
    def error_of_all(self) -> float:
        return (self.steps + self.program) / (self.predicted + self.predicted_program) - 1


def tables(pictures: Path | None) -> Iterable[Table]:
    yield Table(
        title="5. Memory of a rank against its prediction",
        columns=(
            "model, batch", "rank", "tensors MiB", "measured", "", "program MiB", "measured", "",
            "both", "process MiB",
        ),
        rows=[row for model, batch in CASES for row in _rows(model, batch)],
        notes=(
            "tensors: the predicted peak on the rank's device, of parameters, optimizer state, "
            "inputs, activations, workspace and messages; measured: the most resident memory that "
            "the steps from the second on took beside the program. program: as the profile "
            "measured it on one device, and as this rank had it after its first step. both: "
            "resident against predicted, together: what the allocator keeps of freed tensors is in "
            "the measured ones, and in the predicted program. process: the most resident memory at "
            f"any time, the capture included. One thread, AdamW, {STEPS} steps; over loopback.",
        ),
    )  # fmt: skip


def _rows(model: str, batch: int) -> Iterator[tuple[str, ...]]:
    name = f"{model.removesuffix(':training_step').replace(':training_step_', ', ')}, {batch}"
    path = f"placewire.examples.models.{model}"
    with tempfile.TemporaryDirectory() as folder:
        graph = profiled(path, batch, Path(folder))
        for ranks in (1, 2):
            for number, memory in enumerate(measured(graph, cut(graph, ranks), path, batch)):
                yield (
                    name, f"{number + 1} of {ranks}",
                    _mebibytes(memory.predicted), _mebibytes(memory.steps), f"{memory.error:+.1%}",
                    _mebibytes(memory.predicted_program), _mebibytes(memory.program),
                    f"{memory.program / memory.predicted_program - 1:+.1%}",
                    f"{memory.error_of_all:+.1%}", _mebibytes(memory.process),
                )  # fmt: skip


def profiled(
    model: str, batch: int, folder: Path, options: Sequence[str] = ("--samples", "3")
) -> OperatorGraph:
    """The profile of a model, made in a process of its own: a capture leaves traces in memory."""
    out = folder / "graph.json.gz"
    command = [
        sys.executable, "-m", "placewire.optimizer.commands.profile", model, "--batch", str(batch),
        "--out", str(out), *options,
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return load_graph(out)


def cut(graph: OperatorGraph, devices: int, rate: float = RATE_BITS_PER_SECOND) -> Placement:
    """Cuts the model into so many stretches of equally many bytes. A co-location group goes with
    the first of its operators."""
    cluster = cluster_of(devices, rate=rate)
    size = graph.weight_bytes + graph.activation_bytes
    of_group: dict[int, str] = {}
    where: dict[str, str] = {}
    before, total = 0, int(size.sum()) + 1
    for i in dfs_topo(graph).tolist():
        device = cluster.device_names[devices * before // total]
        group = int(graph.colocation[i])
        where[graph.ids[i]] = of_group.setdefault(group, device) if group >= 0 else device
        before += int(size[i])
    placement = placement_of(graph, cluster, where)
    return placement.model_copy(update={"sharing": "unshaped"})


def peaks(graph: OperatorGraph, placement: Placement) -> dict[str, int]:
    """The predicted bytes of tensors on each device."""
    facts = Facts(graph, placement)
    times = recompute_times(facts)
    assert times is not None
    return recompute_memory(facts, times)


def measured(
    graph: OperatorGraph, placement: Placement, model: str, batch: int
) -> list[RankMemory]:
    predicted = peaks(graph, placement)
    fields: dict[str, Any] = {"kind": "placed", "model": model, "batch": batch, "steps": STEPS}
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_ranks(placement, Path(folder), seconds=LIMIT_SECONDS, forked=False, **fields)
    found = []
    for rank in ranks:
        said = rank.finished
        assert said.step_memory_bytes is not None and said.program_memory_bytes is not None
        found.append(RankMemory(
            predicted=predicted[rank.spec.device], steps=said.step_memory_bytes,
            predicted_program=int(graph.notes["program_bytes"]),
            program=said.program_memory_bytes, process=said.peak_memory_bytes,
        ))  # fmt: skip
    return found


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"
