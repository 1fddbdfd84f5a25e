"""Checks the parts of a plan's cluster against each other: names, addresses, subnets and rails.

Each check yields (YAML path, message). Single fields are checked where they are parsed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from placewire.optimizer.cluster_plan.documents import Mistake
from placewire.optimizer.cluster_plan.section import ChosenRails, PlanCluster, PlanNic, PlanServer
from placewire.optimizer.cluster_plan.values import MOST_RAILS

# (YAML path, its server, the NIC)
PlacedNic = tuple[str, PlanServer, PlanNic]


def cluster_mistakes(cluster: PlanCluster, rails: ChosenRails = None) -> Iterator[Mistake]:
    """rails: the plan's network.rails."""
    servers = [(f"cluster.servers[{s}]", server) for s, server in enumerate(cluster.servers)]
    nics = nics_of(cluster)
    yield from _doubles([(f"{p}.name", s.name) for p, s in servers], "server name")
    yield from _doubles([(f"{p}.management", s.management) for p, s in servers], "address")
    yield from _doubles([(f"{p}.address", n.ip) for p, _, n in nics], "address")
    for server, own in nics_by_server(cluster):
        names = [(f"{p}.name", nic.name) for p, nic in own]
        yield from _doubles(names, f"on server {server.name}, NIC name")
        for place, message in _doubles([(f"{p}.rail", nic.rail) for p, nic in own], "rail"):
            yield place, f"on server {server.name}, {message}: a server has one NIC on a rail"
    if (count := len(cluster.rails)) > MOST_RAILS:
        yield "cluster.servers", f"NICs are on {count} rails; accepted: at most {MOST_RAILS}"
    else:
        yield from _subnet_mistakes(cluster, nics)
    yield from _mtu_mistakes(nics)
    yield from _gateway_mistakes(nics)
    yield from _rail_mistakes(cluster, rails)
    yield from _pod_mistakes(cluster)


def nics_of(cluster: PlanCluster) -> list[PlacedNic]:
    return [
        (f"cluster.servers[{s}].nics[{k}]", server, nic)
        for s, server in enumerate(cluster.servers)
        for k, nic in enumerate(server.nics)
    ]


def nics_by_server(
    cluster: PlanCluster,
) -> Iterator[tuple[PlanServer, list[tuple[str, PlanNic]]]]:
    """Each server with its NICs, each with its YAML path."""
    for s, server in enumerate(cluster.servers):
        yield server, [(f"cluster.servers[{s}].nics[{k}]", n) for k, n in enumerate(server.nics)]


def _doubles(values: list[tuple[str, str]], what: str) -> Iterator[Mistake]:
    first: dict[str, str] = {}
    for path, value in values:
        if value in first:
            yield path, f"{what} {value!r} is already taken by {first[value]}; give another"
        first.setdefault(value, path)


def _rail_mistakes(cluster: PlanCluster, rails: ChosenRails) -> Iterator[Mistake]:
    chosen = [(f"network.rails[{k}]", rail) for k, rail in enumerate(rails or ())]
    yield from _doubles(chosen, "rail")
    for place, rail in chosen:
        if rail not in cluster.rails:
            yield place, f"no NIC is on rail {rail!r}; accepted: {', '.join(cluster.rails)}"


def _pod_mistakes(cluster: PlanCluster) -> Iterator[Mistake]:
    pods = [(f"cluster.pods[{p}]", pod) for p, pod in enumerate(cluster.pods or ())]
    if not pods:
        return
    yield from _doubles([(f"{path}.name", pod.name) for path, pod in pods], "pod name")
    known = {server.name for server in cluster.servers}
    members = [
        (f"{path}.servers[{k}]", name) for path, pod in pods for k, name in enumerate(pod.servers)
    ]
    yield from _doubles(members, "server")
    for path, name in members:
        if name not in known:
            yield path, f"no server is called {name!r}; accepted: {', '.join(sorted(known))}"
    placed = {name for _, name in members}
    for s, server in enumerate(cluster.servers):
        if server.name not in placed:
            yield f"cluster.servers[{s}].name", f"{server.name!r} is in no pod; add it to one"
    for path, pod in pods:
        if isinstance(pod.uplink, Mapping):
            yield from _uplink_mistakes(f"{path}.uplink", pod.uplink, cluster.rails)


def _uplink_mistakes(
    path: str, uplink: Mapping[str, float], rails: Sequence[str]
) -> Iterator[Mistake]:
    for rail in uplink:
        if rail not in rails:
            yield f"{path}.{rail}", f"no NIC is on this rail; accepted: {', '.join(rails)}"
    for rail in rails:
        if rail not in uplink:
            yield path, f"rail {rail!r} has no rate; give one for each rail, or one rate for all"


def _subnet_mistakes(cluster: PlanCluster, nics: list[PlacedNic]) -> Iterator[Mistake]:
    subnet: dict[str, tuple[str, ipaddress.IPv4Network]] = {}
    for path, _, nic in nics:
        where, network = subnet.setdefault(nic.rail, (path, nic.network))
        if nic.network != network:
            yield (
                f"{path}.address",
                f"{nic.address} is outside rail {nic.rail!r}'s subnet {network} (from {where}); "
                "one rail is one subnet",
            )
    rails = list(subnet.items())
    for k, (rail, (path, network)) in enumerate(rails):
        for other, (_, earlier) in rails[:k]:
            if network.overlaps(earlier):
                yield (
                    f"{path}.address",
                    f"rail {rail!r}'s subnet {network} overlaps rail {other!r}'s {earlier}; "
                    "traffic is steered by destination, so rails need subnets of their own",
                )
        for s, server in enumerate(cluster.servers):
            if ipaddress.IPv4Address(server.management) in network:
                yield (
                    f"cluster.servers[{s}].management",
                    f"{server.management} is inside rail {rail!r}'s subnet {network}; management "
                    "traffic must not depend on a rail",
                )


def _mtu_mistakes(nics: list[PlacedNic]) -> Iterator[Mistake]:
    first: dict[str, tuple[str, int]] = {}
    for path, _, nic in nics:
        where, mtu_bytes = first.setdefault(nic.rail, (path, nic.mtu_bytes))
        if nic.mtu_bytes != mtu_bytes:
            yield (
                f"{path}.mtu",
                f"{nic.mtu_bytes} is not rail {nic.rail!r}'s {mtu_bytes} (from {where}); a frame "
                "larger than its receiver's MTU is dropped: give all NICs of a rail the same",
            )


def _gateway_mistakes(nics: list[PlacedNic]) -> Iterator[Mistake]:
    owner = {nic.ip: f"{server.name} {nic.name}" for _, server, nic in nics}
    for path, _, nic in nics:
        if nic.gateway is None:
            continue
        gateway = ipaddress.IPv4Address(nic.gateway)
        if gateway not in nic.network:
            why = f"is outside the subnet {nic.network}"
        elif gateway in (nic.network.network_address, nic.network.broadcast_address):
            why = f"is the network or broadcast address of {nic.network}"
        elif nic.gateway in owner:
            why = f"is the address of {owner[nic.gateway]}, a server of this plan"
        else:
            continue
        yield f"{path}.gateway", f"{gateway} {why}; give a router's address on rail {nic.rail!r}"
