"""All peers of a step on a cluster, each as good as its variants let it be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.ddp import ddp_step
from placewire.optimizer.peers.fsdp import fsdp_step
from placewire.optimizer.peers.peer import PeerStep
from placewire.optimizer.peers.pipelines import pipeline_steps
from placewire.optimizer.peers.step_parts import step_parts
from placewire.optimizer.quantities import format_bytes

PIPELINES = ("gpipe", "1f1b", "interleaved-1f1b")


def peers_of(
    graphs: Sequence[OperatorGraph], cluster: Cluster, tell: Callable[[str], None]
) -> list[PeerStep]:
    """The best of each peer that fits into the memories, the shortest step first. graphs: variants
    of one step, of which those with shards are not used. tell: gets a line for each peer that is
    left out."""
    devices = len(cluster.devices)
    if devices < 2:
        tell("ddp, fsdp and pipelines are left out: the cluster has one device")
        return []
    whole = [graph for graph in graphs if graph.notes.get("shards", 1) == 1]
    counts = [int(graph.micro_batch.max(initial=-1)) + 1 for graph in whole]
    each = list(zip(counts, whole, strict=True))
    found = _replicated([graph for count, graph in each if count == devices], cluster, tell)
    several = [graph for count, graph in each if count > 1]
    found += _pipelines(several, cluster, tell)
    best: dict[str, PeerStep] = {}
    for step in sorted(found, key=lambda step: (not step.fits, step.step_seconds)):
        best.setdefault(step.name, step)
    for step in best.values():
        if not np.isfinite(step.step_seconds):
            tell(f"{step.name} is left out: servers of the cluster cannot reach each other")
        elif not step.fits:
            needed = format_bytes(float(step.memory_bytes))
            tell(f"{step.name} is left out: it needs {needed} on a device, which has less memory")
    return [step for step in best.values() if step.fits and np.isfinite(step.step_seconds)]


def _replicated(
    graphs: Sequence[OperatorGraph], cluster: Cluster, tell: Callable[[str], None]
) -> list[PeerStep]:
    """graphs: with one micro-batch for each device; several where layers may be recomputed."""
    devices = len(cluster.devices)
    why = (
        f"they need the step in {devices} micro-batches, one for each device, without shards "
        f"(optimizer profile … --accumulate {devices})"
    )
    found: list[PeerStep] = []
    for graph in graphs:
        try:
            parts = step_parts(graph)
            found.append(ddp_step(parts, cluster))
            if not graph.notes.get("decompose"):
                found.append(fsdp_step(parts, cluster))
        except ValueError as error:
            why = str(error)
    if not found:
        tell(f"ddp and fsdp are left out: {why}")
    elif all(step.name == "ddp" for step in found):
        tell(
            "fsdp is left out: in a decomposed step many operators update a parameter, and which "
            "of them a device runs on its shard alone the graph does not say"
        )
    return found


def _pipelines(
    graphs: Sequence[OperatorGraph], cluster: Cluster, tell: Callable[[str], None]
) -> list[PeerStep]:
    """graphs: with several micro-batches each."""
    if not graphs:
        tell("pipelines are left out: they need the step in several micro-batches, without shards")
        return []
    found: list[PeerStep] = []
    try:
        for graph in graphs:
            found += pipeline_steps(graph, cluster)
    except ValueError as error:
        tell(f"pipelines are left out: {error}")
        return []
    for name in PIPELINES:
        if not any(step.name == name for step in found):
            tell(f"{name} is left out: this step, or its micro-batches, cannot be scheduled so")
    return found
