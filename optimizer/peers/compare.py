"""All peers of a step on a cluster, each as good as its variants let it be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.ddp import ddp_step
from placewire.optimizer.peers.fsdp import fsdp_step
from placewire.optimizer.peers.peer import PeerStep
from placewire.optimizer.peers.pipelines import pipeline_steps
from placewire.optimizer.peers.step_parts import step_parts


def peers_of(
    graphs: Sequence[OperatorGraph], cluster: Cluster, tell: Callable[[str], None]
) -> list[PeerStep]:
    """The best of each peer, the shortest step first. graphs: variants of one step, of which those
    with shards are not used. tell: gets a line for each peer that needs another variant."""
    devices = len(cluster.devices)
    found: list[PeerStep] = []
    whole = [graph for graph in graphs if graph.notes.get("shards", 1) == 1]
    counts = {int(graph.micro_batch.max(initial=-1)) + 1: graph for graph in whole}
    if devices > 1 and devices in counts:
        parts = step_parts(counts[devices])
        found += [ddp_step(parts, cluster), fsdp_step(parts, cluster)]
    elif devices > 1:
        tell(
            f"ddp and fsdp are left out: they need the step in {devices} micro-batches, one for "
            f"each device (optimizer profile … --accumulate {devices})"
        )
    several = [graph for count, graph in counts.items() if count > 1]
    for graph in several:
        found += pipeline_steps(graph, cluster)
    if not several and devices > 1:
        tell("pipelines are left out: they need the step in several micro-batches")
    best: dict[str, PeerStep] = {}
    for step in sorted(found, key=lambda step: step.step_seconds):
        best.setdefault(step.name, step)
    return list(best.values())
