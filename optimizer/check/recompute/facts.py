"""A placement file read against its graph: what the recomputations of `check` start from.

Arrays become lists here, once: plain Python reads a list many times faster than a numpy scalar.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from placewire.optimizer.cluster import Link
from placewire.optimizer.device_names import server_of
from placewire.optimizer.graph.operator_graph import TUPLE_ITEM, OperatorGraph
from placewire.optimizer.placement import Message, Placement

INFINITY = float("inf")


@dataclass(frozen=True)
class Times:
    """start, finish per operator; arrival per (tensor, destination device)."""

    start: Mapping[int, float]
    finish: Mapping[int, float]
    arrival: Mapping[tuple[int, str], float]

    @property
    def step_seconds(self) -> float:
        return max([*self.finish.values(), 0.0])


class GraphLists:
    """The graph's arrays as lists; outputs and inputs hold tensors per operator."""

    def __init__(self, graph: OperatorGraph) -> None:
        n = graph.operator_count
        self.ids, self.types = graph.ids, graph.types
        self.seconds = graph.seconds.tolist()
        self.weight: list[int] = graph.weight_bytes.tolist()
        self.activation: list[int] = graph.activation_bytes.tolist()
        self.workspace: list[int] = graph.workspace_bytes.tolist()
        self.size: list[int] = graph.tensor_bytes.tolist()
        self.maker: list[int] = graph.tensor_producer.tolist()
        starts, readers = graph.consumers_start.tolist(), graph.consumers.tolist()
        self.readers: list[list[int]] = [
            readers[starts[e] : starts[e + 1]] for e in range(len(self.size))
        ]
        self.outputs: list[list[int]] = [[] for _ in range(n)]
        self.inputs: list[list[int]] = [[] for _ in range(n)]
        for e, consumers in enumerate(self.readers):
            self.outputs[self.maker[e]].append(e)
            for c in consumers:
                self.inputs[c].append(e)

    def allocator(self, operator: int) -> int:
        """At whose start its storage appears: a tuple's items are there as soon as the tuple is."""
        inputs = self.inputs[operator]
        if self.types[operator] == TUPLE_ITEM and len(inputs) == 1 and not self.size[inputs[0]]:
            return self.maker[inputs[0]]
        return operator

    def is_view(self, operator: int) -> bool:
        allocates = self.activation[operator] > 0
        return not allocates and any(self.size[e] > 0 for e in self.outputs[operator])


class Facts:
    """Indices instead of names for operators and tensors; devices, servers and rails keep theirs.

    Raises KeyError or IndexError where names do not exist, so structural checks come first.
    """

    def __init__(self, graph: OperatorGraph, placement: Placement) -> None:
        cluster = placement.cluster
        self.graph, self.placement = graph, placement
        self.lists = GraphLists(graph)
        self.device_of = [placement.operators[name] for name in graph.ids]
        self.order = {
            device: [graph.index_of[name] for name in names]
            for device, names in placement.order.items()
        }
        self.type_of = dict(
            zip(cluster.device_names, (d.type for d in cluster.devices), strict=True)
        )
        self.server_of = {name: server_of(name) for name in cluster.device_names}
        self.nics = {(server.name, nic.rail) for server in cluster.servers for nic in server.nics}
        self.link: dict[tuple[str, str], Link] = {
            (link.source, link.destination): link for link in cluster.links
        }
        self.rate = {(s, t, r): x for s, t, r, x in placement.rates_bits_per_second}
        column = {name: k for k, name in enumerate(graph.device_types)}
        columns = [column[self.type_of[device]] for device in self.device_of]
        self.seconds: list[float] = [
            row[k] for row, k in zip(self.lists.seconds, columns, strict=True)
        ]
        self.message: dict[tuple[int, str], Message] = {}
        for message in placement.messages:
            tensor = self.lists.outputs[graph.index_of[message.producer]][message.output]
            self.message[tensor, message.destination] = message

    @cached_property
    def messages_of(self) -> Mapping[int, list[tuple[int, str]]]:
        """Per operator the keys of `message` that it causes, in order of tensor and device."""
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for tensor, device in sorted(self.message):
            found[self.lists.maker[tensor]].append((tensor, device))
        return found

    @cached_property
    def waits_for(self) -> list[int]:
        """Per operator how many inputs it waits for: one per tensor that it reads."""
        return [len(inputs) for inputs in self.lists.inputs]

    @cached_property
    def device_pairs_in_use(self) -> Mapping[tuple[str, str], int]:
        """Per server pair, how many of its device pairs send over its NICs."""
        count: dict[tuple[str, str], int] = defaultdict(int)
        for source, destination in {(m.source, m.destination) for m in self.message.values()}:
            if (source, destination) not in self.link:
                count[self.server_of[source], self.server_of[destination]] += 1
        return count

    def needed(self) -> set[tuple[int, str]]:
        """(tensor, device) of every send that the placement's devices make necessary."""
        device_of, maker = self.device_of, self.lists.maker
        return {
            (e, device_of[c])
            for e, readers in enumerate(self.lists.readers)
            if self.lists.size[e] > 0
            for c in readers
            if device_of[c] != device_of[maker[e]]
        }

    def readers_on(self, tensor: int, device: str) -> list[int]:
        return [c for c in self.lists.readers[tensor] if self.device_of[c] == device]

    def on_nics(self, message: Message) -> bool:
        """Whether it leaves its server over the NICs."""
        ends = (message.source, message.destination)
        return self.server_of[ends[0]] != self.server_of[ends[1]] and ends not in self.link

    def off_nics(self, message: Message) -> tuple[float, float]:
        """(set-up seconds, bits per second) of a path that is no NIC: a link, or one server's own
        between two of its devices."""
        cluster = self.placement.cluster
        link = self.link.get((message.source, message.destination))
        if link is not None:
            return link.setup_latency_seconds, link.rate_bits_per_second
        return cluster.setup_latency_seconds, cluster.intra_server_bits_per_second


def parts(message: Message) -> list[tuple[str, float]]:
    """(rail, bits) of what is sent at all; rail "" where the message names none."""
    bits = message.bytes * 8
    used = [(rail, share * bits) for rail, share in message.rails.items() if share > 0]
    return used or [("", float(bits))]
