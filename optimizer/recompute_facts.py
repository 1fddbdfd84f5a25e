"""A placement file read against its graph: what the recomputations of `check` start from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.graph import OperatorGraph
from optimizer.placement import Message, Placement

INFINITY = float("inf")


@dataclass(frozen=True)
class Times:
    """start, finish per operator; arrival per (tensor, destination device)."""

    start: Mapping[int, float]
    finish: Mapping[int, float]
    arrival: Mapping[tuple[int, str], float]

    @property
    def step_seconds(self) -> float:
        return max(self.finish.values(), default=0.0)


class Facts:
    """A placement read against its graph: indices instead of names. Raises KeyError or IndexError
    where names do not exist, so structural checks come first."""

    def __init__(self, graph: OperatorGraph, placement: Placement) -> None:
        cluster = placement.cluster
        self.graph, self.placement = graph, placement
        self.device_of = [placement.operators[name] for name in graph.ids]
        self.order = {
            device: [graph.index_of[name] for name in names]
            for device, names in placement.order.items()
        }
        self.type_of = dict(
            zip(cluster.device_names, (d.type for d in cluster.devices), strict=True)
        )
        self.server_of = {name: name.rsplit("/", 1)[0] for name in cluster.device_names}
        self.nic = {
            (server.name, nic.rail): nic.rate_bits_per_second
            for server in cluster.servers
            for nic in server.nics
        }
        self.rate = {(s, t, r): x for s, t, r, x in placement.rates_bits_per_second}
        if placement.model == "thesis" and placement.sharing == "unshaped":
            self.rate = self._whole_pairs()
        self.outputs = [graph.output_tensors(i).tolist() for i in range(graph.operator_count)]
        self.readers = [graph.tensor_consumers(e).tolist() for e in range(graph.tensor_count)]
        self.size = graph.tensor_bytes.tolist()
        self.maker = graph.tensor_producer.tolist()
        self.message: dict[tuple[int, str], Message] = {}
        for message in placement.messages:
            tensor = self.outputs[graph.index_of[message.producer]][message.output]
            self.message[tensor, message.destination] = message
        self.pairs_in_use: dict[tuple[str, str], int] = defaultdict(int)
        for source, destination in {(m.source, m.destination) for m in placement.messages}:
            self.pairs_in_use[self.server_of[source], self.server_of[destination]] += 1

    def _whole_pairs(self) -> dict[tuple[str, str, str], float]:
        """Transfers that never meet have each their pair's NICs to themselves."""
        return {
            (s, t, r): min(rate, self.nic[t, r])
            for (s, r), rate in self.nic.items()
            for t in {server.name for server in self.placement.cluster.servers} - {s}
            if (t, r) in self.nic
        }

    def seconds(self, operator: int) -> float:
        column = self.graph.device_types.index(self.type_of[self.device_of[operator]])
        return float(self.graph.seconds[operator, column])

    def needed(self) -> set[tuple[int, str]]:
        return {
            (e, self.device_of[c])
            for e, readers in enumerate(self.readers)
            if self.size[e] > 0
            for c in readers
            if self.device_of[c] != self.device_of[self.maker[e]]
        }

    def message_seconds(self, message: Message, rail: str) -> float:
        """One part of a message on its channel, undisturbed."""
        cluster = self.placement.cluster
        source, destination = self.server_of[message.source], self.server_of[message.destination]
        if source == destination:
            took = message.bytes * 8 / cluster.intra_server_bits_per_second
        else:
            rate = self.rate.get((source, destination, rail), 0.0)
            rate /= self.pairs_in_use[source, destination]
            part = message.bytes * message.rails[rail] * 8
            took = part / rate if rate > 0 else INFINITY
        return cluster.setup_latency_seconds + took
