"""A lab that stands for a cluster of GPU servers, in slow motion.

The lab's NICs stand for fast ones: operators and p0 are slower by one factor, and all tensors, and
what a rank hands over at a time, smaller by another, so that the step of a large model takes
seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

import numpy as np

from benchmarks.engine.measured import CACHE, sources_digest
from benchmarks.engine.parallelisms import optimizer, variant_file
from benchmarks.engine.setting import DEVICE, cluster
from benchmarks.job.replays import kept_graph, lab_cluster
from placewire.optimizer.chunks import with_windows
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement, load_placement
from placewire.optimizer.profile.scale import with_scaled_seconds

MICRO_BATCHES = (1, 4, 8)


@dataclass(frozen=True)
class Placed:
    """graph, placement: with the lab's times and sizes."""

    graph: OperatorGraph
    placement: Placement


@dataclass(frozen=True)
class SlowMotion:
    """servers of one device each, and what they have in the cluster for which the lab stands.
    slower: how many times slower the lab is."""

    servers: int
    nics: int
    gigabits: float
    setup_latency_seconds: float
    slower: float = 100.0

    @property
    def fast(self) -> Cluster:
        made = cluster(self.gigabits, servers=self.servers, nics=self.nics)
        return made.model_copy(update={"setup_latency_seconds": self.setup_latency_seconds})

    def lab(self, nics: int | None = None) -> Cluster:
        """nics: how many of them the job uses, all by default."""
        latency = self.setup_latency_seconds * self.slower
        made = lab_cluster(self.servers, self.nics if nics is None else nics, latency, DEVICE)
        fewer_bytes = self._fewer_bytes(made)
        return with_windows(made, self.slower * fewer_bytes, fewer_bytes)

    @cached_property
    def fewer_bytes(self) -> float:
        """By which all tensors are smaller."""
        return self._fewer_bytes(self.lab())

    def _fewer_bytes(self, lab: Cluster) -> float:
        return self.gigabits * 1e9 / (self.slower * float(lab.nic_rates[0, 0]))

    def slowed(self, graph: OperatorGraph) -> OperatorGraph:
        smaller = np.ceil(graph.tensor_bytes / self.fewer_bytes).astype(np.int64)
        return replace(with_scaled_seconds(graph, self.slower), tensor_bytes=smaller)

    def variants(self, model: str) -> list[OperatorGraph]:
        """The step in several numbers of micro-batches, whole and in shards, as on GPUs."""
        return [
            load_graph(variant_file(model, count, shards))
            for count in MICRO_BATCHES
            for shards in ((1, self.servers) if count > 1 else (1,))
        ]


def solved(
    graphs: Sequence[OperatorGraph], on: Cluster, sharing: str, seconds: float
) -> Mapping[str, Placed]:
    """The best variant's placement under each sharing that was tried, by name; kept, so that a run
    can be taken up. graphs, on: with the lab's times and sizes. sharing: a name, or `auto`."""
    parts = [on.model_dump_json(), sharing, f"{seconds:g}", sources_digest()]
    parts += [graph.profile_digest + graph.structure_hash for graph in graphs]
    folder = CACHE / f"slow-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:20]}"
    on_file, done = folder / "cluster.json", folder / "done"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        on_file.write_text(on.model_dump_json())
        out = ("--out", str(folder / f"{sharing}.json"))
        optimizer(
            "solve", *(str(kept_graph(graph)) for graph in graphs), "--cluster", str(on_file),
            "--sharing", sharing, "--gap", "0", "--time-limit", f"{seconds:g}",
            *(("--out-each", str(folder)) if sharing == "auto" else out),
        )  # fmt: skip
        done.touch()
    files = (folder / f"{name}.json" for name in get_args(SharingName))
    placements = [load_placement(file) for file in files if file.exists()]
    of_structure = {graph.structure_hash: graph for graph in graphs}
    return {one.sharing: Placed(of_structure[one.structure_hash], one) for one in placements}
