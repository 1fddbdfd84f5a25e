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
        index = graph.index_of.get(message.producer)
        if index is None:
            yield Violation(f"producer {message.producer!r} is no operator", where)
        elif not 0 <= message.output < len(graph.output_tensors(index)):
            yield Violation(f"{message.producer!r} has no output {message.output}", where)
        for device in (message.source, message.destination):
            if device not in devices:
                yield Violation(f"{device!r} is no device of the cluster", where)


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
