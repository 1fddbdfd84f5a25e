"""The operators that data-parallel peers run: on every device a micro-batch, and the updates."""

from __future__ import annotations

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.peers.beside_devices import PeerGraph
from placewire.optimizer.peers.step_parts import UPDATE, StepParts

PARAMETER = "parameter"


def replicas(parts: StepParts, cluster: Cluster, held: float = 1.0) -> PeerGraph:
    """Micro-batch d on device d, with a copy of what it shares with others. held: the part of each
    parameter, and of its update, that a device has. Nothing joins gradients and updates yet."""
    graph, made = parts.graph, PeerGraph(parts.graph, cluster)
    devices = range(parts.micro_batches)
    exists: dict[int, tuple[int, ...]] = {i: tuple(devices) for i in parts.before.tolist()}
    for d in devices:
        for i in parts.before.tolist():
            made.copy(i, name_on(parts, i, d), d, held if graph.types[i] == PARAMETER else 1.0)
    for i in graph.topological_order.tolist():
        if (m := int(graph.micro_batch[i])) >= 0:
            made.copy(i, graph.ids[i], m)
            exists[i] = (m,)
    for i in parts.after.tolist():
        known = [exists[j] for j in _read(parts, i) if j in exists]
        exists[i] = tuple(d for d in devices if all(d in one for one in known))
        for d in exists[i]:
            made.copy(i, name_on(parts, i, d), d, held if graph.types[i] == UPDATE else 1.0)
    for e in range(graph.tensor_count):
        producer, size = int(graph.tensor_producer[e]), int(graph.tensor_bytes[e])
        for d in exists.get(producer, ()):
            readers = (int(c) for c in graph.tensor_consumers(e))
            here = [name_on(parts, c, d) for c in readers if d in exists.get(c, ())]
            made.send(name_on(parts, producer, d), here, size)
    return made


def name_on(parts: StepParts, i: int, d: int) -> str:
    name = parts.graph.ids[i]
    return name if parts.graph.micro_batch[i] >= 0 else f"{name}@{d}"


def _read(parts: StepParts, i: int) -> list[int]:
    """The operators whose tensors operator i reads; it waits for others, too, as an update does for
    all that read the weight before."""
    graph = parts.graph
    tensors = [e for e in graph.input_tensors(i).tolist() if graph.tensor_bytes[e] > 0]
    made: list[int] = graph.tensor_producer[tensors].tolist()
    return made
