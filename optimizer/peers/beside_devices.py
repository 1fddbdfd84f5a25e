"""Builds a peer's graph, and the cluster where collectives run beside the operators of a device.

Each device has a second one beside it, of the type COMMUNICATION, which runs collectives as a
stream of their own. What a device and the one beside it hand each other takes no time. What a
collective takes of the device itself makes one of the device's operators last longer, as messages
do in our own placements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.cluster import Cluster, Device
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.names import SharingName
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from placewire.optimizer.simulation.timeline import Timeline

COMMUNICATION = "communication"
_MEMORY_BYTES = 1 << 50


class PeerGraph:
    """Rows of operators with their devices; `on` counts the devices of the user's cluster."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster) -> None:
        self.graph, self.cluster = graph, cluster
        self.rows: list[OperatorRow] = []
        self.tensors: list[TensorRow] = []
        self.home: list[tuple[int, bool]] = []
        self.held: list[tuple[int, int, str | None, tuple[str, ...]]] = []
        self.longer: dict[str, float] = defaultdict(float)

    def copy(self, i: int, name: str, on: int, part: float = 1.0) -> str:
        """Adds operator i of the user's graph, or a part of its work, weights and memory."""
        graph = self.graph
        self.rows.append(
            OperatorRow(
                id=name,
                type=graph.types[i],
                seconds={
                    t: float(s) * part
                    for t, s in zip(graph.device_types, graph.seconds[i], strict=True)
                    if np.isfinite(s)
                },
                weight_bytes=int(graph.weight_bytes[i] * part),
                activation_bytes=int(graph.activation_bytes[i] * part),
                workspace_bytes=int(graph.workspace_bytes[i] * part),
            )
        )
        self.home.append((on, False))
        return name

    def collective(self, name: str, on: int) -> str:
        """Adds a step of a collective, which takes no time but for what it sends; call() says what
        the whole collective takes of a device."""
        self.rows.append(OperatorRow(name, COMMUNICATION, {COMMUNICATION: 0.0}))
        self.home.append((on, True))
        return name

    def send(self, producer: str, consumers: Iterable[str], size: int) -> None:
        if consumers := tuple(consumers):
            self.tensors.append(TensorRow(producer, consumers, size))

    def then(self, producer: str, consumers: Iterable[str]) -> None:
        """The consumers wait for the producer, and nothing is sent."""
        self.send(producer, consumers, 0)

    def call(self, operator: str, moved_bytes: float, sum_seconds: float = 0.0) -> None:
        """One call of a collective occupies the operator's device as one message does that has all
        bytes which the collective moves there, out and in, and for its sums."""
        cluster = self.cluster
        each_byte = cluster.message_seconds_per_byte
        self.longer[operator] += cluster.message_seconds + each_byte * moved_bytes + sum_seconds

    def occupy(self, operator: str, seconds: float) -> None:
        """The operator's device does more once the operator's turn comes, such as a copy."""
        self.longer[operator] += seconds

    def hold(self, on: int, size: int, since: str | None = None, until: Iterable[str] = ()) -> None:
        """A collective's memory, from when an operator begins, or the step does, until all of
        others have run, or to the end of the step."""
        self.held.append((on, size, since, tuple(until)))

    def simulated(self, sharing: SharingName) -> tuple[Problem, Timeline, IntArray]:
        """On each device the ready operator that was added first runs next. Returns the most bytes
        that collectives hold on each device of the user's cluster, too, int64[D]."""
        types = (*self.graph.device_types, COMMUNICATION)
        rows = [self._with_calls(row) for row in self.rows]
        graph = build_graph(rows, self.tensors, device_types=types)
        place = _places(self.cluster)
        device = np.array([place[on][beside] for on, beside in self.home], dtype=np.int64)
        problem = Problem(graph, with_communication(self.cluster), sharing=sharing)
        added = -np.arange(len(self.rows), dtype=np.float64)
        timeline = simulate(problem, device, added)
        return problem, timeline, self._most_held(graph, timeline)

    def _with_calls(self, row: OperatorRow) -> OperatorRow:
        more = self.longer.get(row.id, 0.0)
        return replace(row, seconds={t: s + more for t, s in row.seconds.items()}) if more else row

    def _most_held(self, graph: OperatorGraph, timeline: Timeline) -> IntArray:
        most = np.zeros(len(self.cluster.devices), dtype=np.int64)
        at = graph.index_of
        for d in range(len(most)):
            changes: list[tuple[float, int]] = []
            for on, size, since, until in self.held:
                if on == d:
                    begin = 0.0 if since is None else float(timeline.start[at[since]])
                    end = max((float(timeline.finish[at[i]]) for i in until), default=np.inf)
                    changes += [(begin, size), (end, -size)]
            most[d] = np.cumsum([change for _, change in sorted(changes)]).max(initial=0)
        return most


def with_communication(cluster: Cluster) -> Cluster:
    """The devices beside are no processors: a collective's messages take no time of them."""
    beside = Device(type=COMMUNICATION, memory_bytes=_MEMORY_BYTES)
    servers = tuple(
        server.model_copy(update={"devices": server.devices + (beside,) * len(server.devices)})
        for server in cluster.servers
    )
    free = {"message_seconds": 0.0, "message_seconds_per_byte": 0.0}
    return cluster.model_copy(update={"servers": servers, **free})


def _places(cluster: Cluster) -> list[tuple[int, int]]:
    """Of each device of the user's cluster its number, and that of the one beside it."""
    found, at = [], 0
    for server in cluster.servers:
        count = len(server.devices)
        found += [(at + k, at + count + k) for k in range(count)]
        at += 2 * count
    return found
