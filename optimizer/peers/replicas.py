"""The operators that data-parallel peers run: on every device a micro-batch, and the updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import PARAMETER, UPDATE
from placewire.optimizer.peers.beside_devices import PeerGraph
from placewire.optimizer.peers.step_parts import Gradient, StepParts
from placewire.optimizer.problem import Problem

# The bytes of memory that a copy and an addition move for each byte of their results.
_COPIED, _ADDED_UP = 2, 3


def replicas(parts: StepParts, cluster: Cluster, held: float = 1.0) -> PeerGraph:
    """Micro-batch d on device d, with a copy of what it shares with others. held: the part of each
    parameter, and of what reads its gradient, that a device has. Nothing joins gradients and
    updates yet. Raises ValueError where a device cannot run all of it, or an update needs more of
    several micro-batches than sums of gradients."""
    _refuse_unable(parts, cluster)
    graph, made = parts.graph, PeerGraph(parts.graph, cluster)
    of_gradients = {c for gradient in parts.gradients for c in gradient.readers}
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
            made.copy(i, name_on(parts, i, d), d, held if i in of_gradients else 1.0)
        if graph.types[i] == UPDATE and len(exists[i]) < len(devices):
            raise ValueError(f"{graph.ids[i]} needs more of several micro-batches than a sum")
    for e in range(graph.tensor_count):
        producer, size = int(graph.tensor_producer[e]), int(graph.tensor_bytes[e])
        for d in exists.get(producer, ()):
            readers = (int(c) for c in graph.tensor_consumers(e))
            here = [name_on(parts, c, d) for c in readers if d in exists.get(c, ())]
            made.send(name_on(parts, producer, d), here, size)
    return made


def sum_seconds(parts: StepParts, cluster: Cluster, gradients: Sequence[Gradient]) -> FloatArray:
    """float64[D]: for how long each device adds, where each sums its equal part of the gradients
    over all devices."""
    return _added(parts, cluster, gradients) / parts.micro_batches


def copy_seconds(parts: StepParts, cluster: Cluster, gradient: Gradient) -> FloatArray:
    """float64[D]: for how long each device copies the gradient by a kernel of its own, which moves
    two bytes where an addition moves three. Of what starting a kernel takes, two thirds count, too,
    as the graph does not tell it from the rest of an addition."""
    return _COPIED / _ADDED_UP * _added(parts, cluster, [gradient]) / len(gradient.additions)


def copy_seconds_per_byte(parts: StepParts, cluster: Cluster) -> FloatArray:
    """float64[D]: for how long each device copies a byte where one kernel copies many tensors: as
    in the largest gradient, in which starting a kernel takes least of the time."""
    largest = max(parts.gradients, key=lambda one: one.bytes)
    return copy_seconds(parts, cluster, largest) / max(largest.bytes, 1)


def _added(parts: StepParts, cluster: Cluster, gradients: Sequence[Gradient]) -> FloatArray:
    """float64[D]: the seconds of all additions of the gradients on each device, 0 for those that it
    cannot run."""
    added = [i for gradient in gradients for i in gradient.additions]
    seconds = Problem(parts.graph, cluster).seconds[added]
    total: FloatArray = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)
    return total


def name_on(parts: StepParts, i: int, d: int) -> str:
    name = parts.graph.ids[i]
    return name if parts.graph.micro_batch[i] >= 0 else f"{name}@{d}"


def _refuse_unable(parts: StepParts, cluster: Cluster) -> None:
    finite = np.isfinite(Problem(parts.graph, cluster).seconds)
    shared = parts.graph.micro_batch < 0
    for d, name in enumerate(cluster.device_names):
        lacking = np.flatnonzero(~finite[:, d] & (shared | (parts.graph.micro_batch == d)))
        if len(lacking):
            raise ValueError(f"{name} cannot run {parts.graph.ids[int(lacking[0])]}")


def _read(parts: StepParts, i: int) -> list[int]:
    """The operators whose tensors operator i reads; it waits for others, too, as an update does for
    all that read the weight before."""
    graph = parts.graph
    tensors = [e for e in graph.input_tensors(i).tolist() if graph.tensor_bytes[e] > 0]
    made: list[int] = graph.tensor_producer[tensors].tolist()
    return made
