"""Makes random placements of any graph, without an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Message, Placement

DEVICE_TYPE = "cpu"


def cluster_of(devices: int, rails: Sequence[str] = ("a",), rate: float = 1e9) -> Cluster:
    """One device per server."""
    nics = tuple(Nic(rail=rail, rate_bits_per_second=rate) for rail in rails)
    servers = tuple(
        Server(
            name=f"s{i + 1}",
            devices=(Device(type=DEVICE_TYPE, memory_bytes=1 << 33),),
            nics=nics,
        )
        for i in range(devices)
    )
    return Cluster(servers=servers, setup_latency_seconds=1e-4, intra_server_bits_per_second=1e10)


def random_devices(graph: OperatorGraph, cluster: Cluster, seed: int) -> dict[str, str]:
    """A random device for each operator, the same for all of a co-location group; every device gets
    at least one operator."""
    choose = random.Random(seed)
    of_group: dict[int, str] = {}
    devices = {}
    for i, identifier in enumerate(graph.ids):
        device = choose.choice(cluster.device_names)
        if (group := int(graph.colocation[i])) >= 0:
            device = of_group.setdefault(group, device)
        devices[identifier] = device
    return devices


def placement_of(
    graph: OperatorGraph,
    cluster: Cluster,
    devices: dict[str, str],
    *,
    shares: dict[str, float] | None = None,
    order_seed: int | None = None,
    bundle_seed: int | None = None,
) -> Placement:
    """Devices run their operators in one global topological order, and each tensor that crosses
    devices is one message per destination.

    shares: each rail's share of every message (equal if not given). order_seed: takes a random
    topological order instead of the graph's own. bundle_seed: lets random tensors travel together.
    """
    shares = shares or {rail: 1 / len(cluster.rails) for rail in cluster.rails}
    order: dict[str, list[str]] = {name: [] for name in cluster.device_names}
    turns = _topological(graph, order_seed)
    for i in turns:
        order[devices[graph.ids[i]]].append(graph.ids[i])
    messages: list[Any] = []
    for i in turns:
        identifier = graph.ids[i]
        for output, tensor in enumerate(graph.output_tensors(i).tolist()):
            there = {devices[graph.ids[c]] for c in graph.tensor_consumers(tensor)}
            for destination in sorted(there - {devices[identifier]}):
                if graph.tensor_bytes[tensor]:
                    messages.append(
                        Message(
                            producer=identifier,
                            output=output,
                            source=devices[identifier],
                            destination=destination,
                            bytes=int(graph.tensor_bytes[tensor]),
                            send_order=len(messages),
                            rails=shares,
                        )
                    )
    if bundle_seed is not None:
        messages = _bundled(graph, devices, turns, messages, random.Random(bundle_seed))
    return Placement(
        structure_hash=graph.structure_hash,
        profile_digest=graph.profile_digest,
        cluster=cluster,
        model="contended",
        sharing="strict",
        operators=devices,
        order={name: tuple(ids) for name, ids in order.items()},
        rates_bits_per_second=(),
        messages=tuple(messages),
        step_seconds=1.0,
        bound_seconds=1.0,
        gap=0.0,
        single_device_seconds=None,
        engine="by hand",
        reduction="none",
        seed=0,
        wall_seconds={},
    )


def _bundled(
    graph: OperatorGraph,
    devices: dict[str, str],
    turns: Sequence[int],
    messages: Sequence[Message],
    choose: random.Random,
) -> list[Message]:
    """Joins messages of a pair such that the last tensor of each is made, in the global order of
    operators, before any of its tensors is read; so no two devices wait for each other.

    turns: the global order, in which the messages are made.
    """
    turn = {graph.ids[i]: at for at, i in enumerate(turns)}
    joined: list[Message] = []
    first_read: list[int] = []
    for message in messages:
        tensor = int(graph.output_tensors(graph.index_of[message.producer])[message.output])
        readers = (graph.ids[c] for c in graph.tensor_consumers(tensor))
        read = min(turn[name] for name in readers if devices[name] == message.destination)
        fitting = [
            at
            for at, other in enumerate(joined)
            if (other.source, other.destination) == (message.source, message.destination)
            and turn[other.producer] < turn[message.producer] < first_read[at]
        ]
        if fitting and choose.random() < 0.8:
            at = choose.choice(fitting)
            other, read = joined.pop(at), min(first_read.pop(at), read)
            more = {
                "bundled": other.tensors,
                "bytes": other.bytes + message.bytes,
                "send_order": min(other.send_order, message.send_order),
            }
            joined.append(message.model_copy(update=more))
        else:
            joined.append(message)
        first_read.append(read)
    ranked = sorted(range(len(joined)), key=lambda at: joined[at].send_order)
    place = {at: order for order, at in enumerate(ranked)}
    return [m.model_copy(update={"send_order": place[at]}) for at, m in enumerate(joined)]


def _topological(graph: OperatorGraph, seed: int | None) -> list[int]:
    if seed is None:
        return [int(i) for i in graph.topological_order]
    choose = random.Random(seed)
    source, target, _ = graph.edges
    waiting = [0] * graph.operator_count
    followers: list[list[int]] = [[] for _ in graph.ids]
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        waiting[b] += 1
        followers[a].append(b)
    ready = [i for i, count in enumerate(waiting) if not count]
    order = []
    while ready:
        i = ready.pop(choose.randrange(len(ready)))
        order.append(i)
        for j in followers[i]:
            waiting[j] -= 1
            if not waiting[j]:
                ready.append(j)
    return order
