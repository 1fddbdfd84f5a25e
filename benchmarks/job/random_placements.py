"""Random placements that keep all rules and make no sense: the training must be the same on each.

Operators that must share a device stay together. The seed decides everything else: the device of
each operator (even seeds) or of each stretch of operators (odd seeds), how devices lie in servers,
the order of operators, which tensors travel together (in two of three seeds), the cut of each
message over the rails, the send order, and whether urgent
messages leave first, in small chunks (`job` sharing), or in the order of the program.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Message, Placement
from tests.placements import DEVICE_TYPE, placement_of, random_devices

MEMORY_BYTES = 1 << 33
# So slow that chunks are as small as they can be; ranks on loopback do not wait for it.
RATE_BITS_PER_SECOND = 2e7


def random_placement(
    graph: OperatorGraph, devices: int, rails: Sequence[str], seed: int
) -> Placement:
    """A placement on so many devices, each with something to do."""
    choose = random.Random(seed)
    cluster = _cluster(choose, devices, rails)
    where = _stretches(graph, cluster, choose) if seed % 2 else random_devices(graph, cluster, seed)
    bundles = seed if seed % 3 else None
    placement = placement_of(graph, cluster, where, order_seed=seed, bundle_seed=bundles)
    orders = list(range(len(placement.messages)))
    choose.shuffle(orders)
    messages = [
        message.model_copy(update={"send_order": order, "rails": _cut(choose, message, rails)})
        for message, order in zip(placement.messages, orders, strict=True)
    ]
    sharing = choose.choice(("strict", "job"))
    return placement.model_copy(update={"messages": tuple(messages), "sharing": sharing})


def on_one_device(graph: OperatorGraph) -> Placement:
    cluster = _cluster(random.Random(0), 1, ("a",))
    return placement_of(graph, cluster, dict.fromkeys(graph.ids, cluster.device_names[0]))


def _cluster(choose: random.Random, devices: int, rails: Sequence[str]) -> Cluster:
    """Servers of one or two devices; at least two servers, unless there is one device."""
    sizes: list[int] = []
    while (left := devices - sum(sizes)) > 0:
        sizes.append(choose.choice((1, 2)) if left > 1 and (sizes or left > 2) else 1)
    servers = tuple(
        Server(
            name=f"s{i + 1}",
            devices=tuple(Device(type=DEVICE_TYPE, memory_bytes=MEMORY_BYTES) for _ in range(n)),
            nics=tuple(Nic(rail=rail, rate_bits_per_second=RATE_BITS_PER_SECOND) for rail in rails),
        )
        for i, n in enumerate(sizes)
    )
    return Cluster(servers=servers, setup_latency_seconds=1e-4, intra_server_bits_per_second=1e10)


def _stretches(graph: OperatorGraph, cluster: Cluster, choose: random.Random) -> dict[str, str]:
    """The devices of operators, most neighbours in the graph's order together, as is usual."""
    of_group: dict[int, str] = {}
    where: dict[str, str] = {}
    names = list(cluster.device_names)
    device, left = names[0], 0
    for i in graph.topological_order.tolist():
        if not left:
            device, left = choose.choice(names), choose.randint(1, 40)
        left -= 1
        group = int(graph.colocation[i])
        where[graph.ids[i]] = of_group.setdefault(group, device) if group >= 0 else device
    free = [name for i, name in enumerate(graph.ids) if graph.colocation[i] < 0]
    for unused, operator in zip(
        sorted(set(names) - set(where.values())), choose.sample(free, len(names)), strict=False
    ):
        where[operator] = unused
    return where


def _cut(choose: random.Random, message: Message, rails: Sequence[str]) -> dict[str, float]:
    if message.source.split("/")[0] == message.destination.split("/")[0]:
        return {}
    if choose.random() < 0.3:
        return {choose.choice(list(rails)): 1.0}
    parts = [choose.random() for _ in rails]
    return {rail: part / sum(parts) for rail, part in zip(rails, parts, strict=True)}
