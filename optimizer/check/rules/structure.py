"""Rules on names and orders: each operator is placed once, on a device that can run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from placewire.optimizer.check.recompute.sharings import rules_of
from placewire.optimizer.check.rules.violation import Violation
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement


def graph_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    if placement.structure_hash != graph.structure_hash:
        yield Violation(
            f"the placement is for graph {placement.structure_hash[:12]}…, this one is "
            f"{graph.structure_hash[:12]}…",
            "structure_hash",
        )
    elif placement.profile_digest != graph.profile_digest:
        yield Violation("the graph's times or memory have changed since", "profile_digest")
    if not 0 <= placement.floor <= 1:
        yield Violation(f"{placement.floor} is not a part of a NIC, from 0 to 1", "floor")
    if placement.model == "msr" and len(placement.cluster.servers) != 1:
        yield Violation("model msr is for the devices of one server", "cluster.servers")


def operator_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    cluster = placement.cluster
    types = dict(zip(cluster.device_names, (d.type for d in cluster.devices), strict=True))
    column = {name: k for k, name in enumerate(graph.device_types)}
    for name, seconds in zip(graph.ids, graph.seconds.tolist(), strict=True):
        where = f"operators.{name}"
        device = placement.operators.get(name)
        if device is None:
            yield Violation("is placed nowhere", where)
        elif device not in types:
            yield Violation(f"is placed on {device!r}, which does not exist", where)
        elif types[device] not in column:
            yield Violation(f"has no time on device type {types[device]!r}", where)
        elif seconds[column[types[device]]] == float("inf"):
            yield Violation(f"cannot run on device type {types[device]!r}", where)
    for name in sorted(set(placement.operators) - set(graph.ids)):
        yield Violation("is no operator of the graph", f"operators.{name}")


def order_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    placed: dict[str, Counter[str]] = {}
    for name, device in placement.operators.items():
        placed.setdefault(device, Counter())[name] += 1
    for device, names in placement.order.items():
        if device not in placement.cluster.device_names:
            yield Violation("is no device of the cluster", f"order.{device}")
        listed, here = Counter(names), placed.get(device, Counter())
        for name in listed - here:
            yield Violation("is listed twice, or not placed here", f"order.{device}.{name}")
        for name in here - listed:
            yield Violation("is placed here and missing in the order", f"order.{device}.{name}")
    for device in sorted(set(placed) - set(placement.order)):
        yield Violation("has operators and no order", f"order.{device}")
    if placement.model == "thesis":
        yield from _sort_violations(graph, placement)


def _sort_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    """Under `thesis` each device follows the recorded sort: its bounds hold for no other order."""
    position = dict(zip(graph.ids, graph.position.tolist(), strict=True))
    for device, names in placement.order.items():
        known = [name for name in names if name in position]
        for earlier, later in pairwise(known):
            if position[later] < position[earlier]:
                yield Violation(
                    f"runs {earlier!r} before {later!r}; under model thesis each device follows "
                    "the graph's topological order, which has them the other way round",
                    f"order.{device}",
                )
                break


def message_name_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    devices = set(placement.cluster.device_names)
    for k, message in enumerate(placement.messages):
        where = f"messages.{k}"
        for sent in message.tensors:
            index = graph.index_of.get(sent.producer)
            if index is None:
                yield Violation(f"producer {sent.producer!r} is no operator", where)
            elif not 0 <= sent.output < len(graph.output_tensors(index)):
                yield Violation(f"{sent.producer!r} has no output {sent.output}", where)
        for device in (message.source, message.destination):
            if device not in devices:
                yield Violation(f"{device!r} is no device of the cluster", where)


def bundle_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    """A bundle has tensors that its destination needs, of the graph's sizes, in the order in which
    its source makes them, and brings none that another message brings."""
    if not any(message.bundled for message in placement.messages):
        return
    turn = {name: k for names in placement.order.values() for k, name in enumerate(names)}
    where_of = placement.operators
    brought = Counter(
        (s.producer, s.output, m.destination) for m in placement.messages for s in m.tensors
    )
    for k, message in enumerate(placement.messages):
        where = f"messages.{k}"
        if not message.bundled:
            continue
        before = -1
        for sent in message.tensors:
            name = f"{sent.producer!r} in a bundle"
            index = graph.index_of.get(sent.producer, -1)
            if index < 0 or not 0 <= sent.output < len(graph.output_tensors(index)):
                continue  # told by message_name_violations
            tensor = int(graph.output_tensors(index)[sent.output])
            size = int(graph.tensor_bytes[tensor])
            readers = (graph.ids[c] for c in graph.tensor_consumers(tensor).tolist())
            if sent.bytes != size or not size:
                yield Violation(f"{name} says {sent.bytes} bytes, the tensor has {size}", where)
            if where_of.get(sent.producer) != message.source:
                yield Violation(f"{name} does not run on {message.source}", where)
            elif not before < (before := turn.get(sent.producer, -1)):
                yield Violation(f"{name} runs before one that lies before it", where)
            if all(where_of.get(reader) != message.destination for reader in readers):
                yield Violation(f"{name} is needed by nobody on {message.destination}", where)
            if brought[sent.producer, sent.output, message.destination] > 1:
                yield Violation(f"{name} is sent to {message.destination} twice", where)


def send_order_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    """Where the send order decides what is sent first, the M messages have each of 0..M-1 once."""
    if not rules_of(placement).orders_messages:
        return
    count = len(placement.messages)
    seen: set[int] = set()
    for k, message in enumerate(placement.messages):
        if message.send_order in seen or not 0 <= message.send_order < count:
            yield Violation(
                f"send_order {message.send_order} is given twice, or is not one of 0..{count - 1}",
                f"messages.{k}",
            )
        seen.add(message.send_order)
