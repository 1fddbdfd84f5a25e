"""A placement file read against its graph: the lists that all recomputations start from.

A bundle is an operator of its source that copies the tensors into one, which is what is sent.
Messages of one source with the same tensors in the same order are one bundle. Several bundles after
one operator run by their tensors and then by destinations. A byte is copied in two
thirds of the time in which the device adds one, by the median of its additions of at least 1 MiB.
The time that a message takes of its two devices is added to the operator that sends it, and to that
reader of it which has the lowest number.

Arrays become lists here, once: plain Python reads a list many times faster than a numpy scalar.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from statistics import median

from placewire.optimizer.check.recompute.network import nic_rates, recorded_rates
from placewire.optimizer.device_names import server_of
from placewire.optimizer.graph.operator_graph import TUPLE_ITEM, OperatorGraph
from placewire.optimizer.placement import Message, Placement


@dataclass(frozen=True)
class Times:
    """Seconds: start and finish of each operator, arrival of each (tensor, destination device)."""

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
        self.ids, self.types = list(graph.ids), list(graph.types)
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
        self._copied: dict[int, float] = {}
        self.outputs: list[list[int]] = [[] for _ in range(n)]
        self.inputs: list[list[int]] = [[] for _ in range(n)]
        for e, consumers in enumerate(self.readers):
            self.outputs[self.maker[e]].append(e)
            for c in consumers:
                self.inputs[c].append(e)

    def _copying(self, column: int) -> float:
        """Seconds a byte, on devices of the column's type."""
        if column not in self._copied:
            took = []
            for i, kind in enumerate(self.types):
                size = max((self.size[e] for e in self.outputs[i]), default=0)
                seconds = self.seconds[i][column]
                if kind == "aten.add.Tensor" and size >= 2**20 and isfinite(seconds):
                    took.append(seconds / size)
            self._copied[column] = median(took) * 2 / 3 if took else 0.0
        return self._copied[column]

    def add_bundle(self, tensors: Sequence[int]) -> tuple[int, int]:
        """Adds an operator that copies the tensors into one. Returns (operator, tensor)."""
        operator, whole = len(self.ids), len(self.size)
        total = sum(self.size[e] for e in tensors)
        copying = [total * self._copying(k) for k in range(len(self.seconds[0]))]
        self.ids.append(f"bundle {operator}")
        self.types.append("bundle")
        self.seconds.append(copying)
        self.weight.append(0)
        self.activation.append(total)
        self.workspace.append(0)
        self.size.append(total)
        self.maker.append(operator)
        self.readers.append([])
        self.outputs.append([whole])
        self.inputs.append(list(tensors))
        for e in tensors:
            self.readers[e].append(operator)
        return operator, whole

    def read_from_bundle(self, tensors: Sequence[int], whole: int, readers: Sequence[int]) -> None:
        """These readers read the bundle's tensor in the place of those in it."""
        inside, away = set(tensors), set(readers)
        for e in tensors:
            self.readers[e] = [c for c in self.readers[e] if c not in away]
        for c in readers:
            self.inputs[c] = [*(e for e in self.inputs[c] if e not in inside), whole]
        self.readers[whole] += readers

    def allocator(self, operator: int) -> int:
        """The operator whose start allocates this one's storage; for a tuple's item, the tuple."""
        inputs = self.inputs[operator]
        if self.types[operator] == TUPLE_ITEM and len(inputs) == 1 and not self.size[inputs[0]]:
            return self.maker[inputs[0]]
        return operator

    def is_view(self, operator: int) -> bool:
        allocates = self.activation[operator] > 0
        return not allocates and any(self.size[e] > 0 for e in self.outputs[operator])


class Facts:
    """Operators and tensors by index; devices, servers and rails by name. given: the graph as it
    is; lists: with the placement's bundles, which come after all others.

    Raises KeyError or IndexError where names do not exist, so structural checks come first.
    """

    def __init__(self, graph: OperatorGraph, placement: Placement) -> None:
        cluster = placement.cluster
        self.graph, self.placement = graph, placement
        self.given = self.lists = GraphLists(graph)
        if any(message.bundled for message in placement.messages):
            self.lists = GraphLists(graph)
        self.device_of = [placement.operators[name] for name in graph.ids]
        self.order = {
            device: [graph.index_of[name] for name in names]
            for device, names in placement.order.items()
        }
        types = (device.type for device in cluster.devices)
        self.type_of = dict(zip(cluster.device_names, types, strict=True))
        self.link = {(link.source, link.destination): link for link in cluster.links}
        self.nics = set(nic_rates(placement))
        self.rate = recorded_rates(placement)
        column = {name: k for k, name in enumerate(graph.device_types)}
        self.seconds: list[float] = [
            row[column[self.type_of[device]]]
            for row, device in zip(self.lists.seconds, self.device_of, strict=True)
        ]
        self.message: dict[tuple[int, str], Message] = {}
        after: dict[int, list[tuple[int, list[int], int]]] = defaultdict(list)
        number = {name: d for d, name in enumerate(cluster.device_names)}
        packed: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
        goes_to: dict[int, list[int]] = defaultdict(list)
        for message in placement.messages:
            tensors = [
                self.lists.outputs[graph.index_of[sent.producer]][sent.output]
                for sent in message.tensors
            ]
            tensor = tensors[-1]
            if message.bundled:
                key = message.source, tuple(tensors)
                if key not in packed:
                    packed[key] = self._bundle(tensors, message)
                    operator, _ = packed[key]
                    to = goes_to[operator]
                    after[graph.index_of[message.producer]].append((min(tensors), to, operator))
                operator, tensor = packed[key]
                goes_to[operator].append(number[message.destination])
                self.lists.read_from_bundle(tensors, tensor, self._readers_of(tensors, message))
            self.message[tensor, message.destination] = message
        if after:
            for to in goes_to.values():
                to.sort()
            then = {i: [operator for *_, operator in sorted(some)] for i, some in after.items()}
            self.order = {
                device: [j for i in order for j in (i, *then.get(i, ()))]
                for device, order in self.order.items()
            }
        if placement.model == "contended":
            for (tensor, destination), message in self.message.items():
                if message.bytes > 0:
                    took = cluster.message_seconds_per_byte * message.bytes
                    took += cluster.message_seconds
                    taker = min(self.readers_on(tensor, destination), default=None)
                    for i in (self.lists.maker[tensor], taker):
                        if i is not None:
                            self.seconds[i] += took

    def _bundle(self, tensors: Sequence[int], message: Message) -> tuple[int, int]:
        """Counts a bundle as an operator of its source."""
        added = self.lists.add_bundle(tensors)
        self.device_of.append(message.source)
        column = self.graph.device_types.index(self.type_of[message.source])
        self.seconds.append(self.lists.seconds[-1][column])
        return added

    def _readers_of(self, tensors: Sequence[int], message: Message) -> list[int]:
        readers = [c for e in tensors for c in self.readers_on(e, message.destination)]
        return list(dict.fromkeys(readers))

    @cached_property
    def messages_of(self) -> Mapping[int, list[tuple[int, str]]]:
        """The keys in `message` of what each operator sends, in order of tensor and device."""
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for tensor, device in sorted(self.message):
            found[self.lists.maker[tensor]].append((tensor, device))
        return found

    @cached_property
    def waits_for(self) -> list[int]:
        """How many inputs each operator waits for: one per tensor that it reads."""
        return [len(inputs) for inputs in self.lists.inputs]

    @cached_property
    def device_pairs_in_use(self) -> Mapping[tuple[str, str], int]:
        """How many device pairs of each pair of servers send over the NICs."""
        used = {(m.source, m.destination) for m in self.message.values()} - set(self.link)
        return Counter((server_of(source), server_of(target)) for source, target in used)

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
        source, target = servers_of(message)
        return source != target and (message.source, message.destination) not in self.link

    def off_nics(self, message: Message) -> tuple[float, float]:
        """(set-up seconds, bits per second) of a path without NICs: a link, or inside a server."""
        cluster = self.placement.cluster
        link = self.link.get((message.source, message.destination))
        if link is not None:
            return link.setup_latency_seconds, link.rate_bits_per_second
        return cluster.setup_latency_seconds, cluster.intra_server_bits_per_second


def servers_of(message: Message) -> tuple[str, str]:
    return server_of(message.source), server_of(message.destination)


def parts(message: Message) -> list[tuple[str, float]]:
    """(rail, bits) of each part that is sent; rail "" where the message names no rails."""
    bits = message.bytes * 8
    used = [(rail, share * bits) for rail, share in message.rails.items() if share > 0]
    return used or [("", float(bits))]
