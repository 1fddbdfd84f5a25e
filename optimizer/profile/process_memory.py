"""Computes what a whole graph takes on one device, and a process beside its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewire.optimizer.cluster import Cluster, Device, Server
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import WITHOUT_SHAPING
from placewire.optimizer.problem import Problem

if TYPE_CHECKING:
    from placewire.optimizer.profile.measure import Profile


def beside_tensors_bytes(profile: Profile, tensor_bytes: int) -> int | None:
    """Returns what the program and its allocator hold: what the profile's process took beyond the
    predicted peak of the whole graph on one device. None where that was not measured.

    tensor_bytes: that peak.
    """
    if profile.program_bytes is None or profile.process_bytes is None:
        return None
    return max(profile.program_bytes, profile.process_bytes - tensor_bytes)


def peak_on_one_device(graph: OperatorGraph) -> int:
    """Returns the bytes of the whole graph's tensors on one device. graph: with the times of one
    device type, and its workspace."""
    from placewire.optimizer.simulation.simulate import simulate

    (device_type,) = graph.device_types
    total = graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes
    device = Device(type=device_type, memory_bytes=max(1, int(total.sum())))
    cluster = Cluster(
        servers=(Server(name="server", devices=(device,), nics=()),),
        setup_latency_seconds=0.0,
        intra_server_bits_per_second=1.0,
    )
    problem = Problem(graph, cluster, WITHOUT_SHAPING)
    placed = np.zeros(graph.operator_count, dtype=np.int64)
    return int(simulate(problem, placed).peak_memory_bytes[0])
