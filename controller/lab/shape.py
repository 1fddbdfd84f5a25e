"""Computes the lab that a plan asks for: namespaces, addresses and lines. Pure.

namespace pw-LAB-SERVER              namespace pw-LAB-rail-RAIL
nic0 ──────────────────────── portN ─ lineN ─ upN ── downN ─ rail
                            (receive limit)  (transmit limit)   (bridge, not blocking)
mgmt0 ───────── srvN ─ mgmt (bridge, holds the controller's address; pw-LAB-controller)

Where the plan has pods, `rail` is the core, and downN is on the bridge of its server's pod:
podN ─ coreN ── inN ─ rail
    (limit out of the pod, limit into it)
"""

from __future__ import annotations

import ipaddress
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from placewire.controller.errors import PlacewireError
from placewire.controller.plan.plan import Plan

MANAGEMENT_INTERFACE = "mgmt0"
CONTROLLER_TCP_PORT = 7440


@dataclass(frozen=True)
class LabNic:
    """address: with prefix. bits_per_second: on the wire. mtu_bytes, index: of the NIC's line."""

    name: str
    rail: str
    index: int
    address: str
    bits_per_second: float
    mtu_bytes: int


@dataclass(frozen=True)
class LabServer:
    """management: an address with its prefix."""

    name: str
    namespace: str
    management: str
    nics: tuple[LabNic, ...]


@dataclass(frozen=True)
class LabPod:
    """index: of its bridge, podN, on every rail. bits_per_second: of its uplink on each rail, on
    the wire."""

    index: int
    servers: tuple[str, ...]
    bits_per_second: Mapping[str, float]


@dataclass(frozen=True)
class LabShape:
    """controller_address: with its prefix; on the management bridge."""

    name: str
    servers: tuple[LabServer, ...]
    pods: tuple[LabPod, ...]
    rails: tuple[str, ...]
    controller_namespace: str
    controller_address: str

    def rail_namespace(self, rail: str) -> str:
        return f"pw-{self.name}-rail-{rail}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (
            self.controller_namespace,
            *(self.rail_namespace(rail) for rail in self.rails),
            *(server.namespace for server in self.servers),
        )


def shape_of(plan: Plan) -> LabShape:
    """Raises PlacewireError where a plan that is valid for real servers makes no lab."""
    network, controller = _management(plan)
    indices = {rail: itertools.count(1) for rail in plan.cluster.rails}
    servers = tuple(
        LabServer(
            name=server.name,
            namespace=f"pw-{plan.name}-{server.name}",
            management=f"{server.management}/{network.prefixlen}",
            nics=tuple(
                LabNic(
                    name=nic.name,
                    rail=nic.rail,
                    index=next(indices[nic.rail]),
                    address=nic.address,
                    bits_per_second=nic.rate_bits_per_second,
                    mtu_bytes=nic.mtu_bytes,
                )
                for nic in server.nics
            ),
        )
        for server in plan.cluster.servers
    )
    shape = LabShape(
        name=plan.name,
        servers=servers,
        pods=tuple(
            LabPod(
                index=index,
                servers=pod.servers,
                bits_per_second={rail: pod.uplink_of(rail) for rail in plan.cluster.rails},
            )
            for index, pod in enumerate(plan.cluster.pods or (), start=1)
        ),
        rails=plan.cluster.rails,
        controller_namespace=f"pw-{plan.name}-controller",
        controller_address=f"{controller}/{network.prefixlen}",
    )
    _refuse_clashes(shape)
    return shape


def _management(plan: Plan) -> tuple[ipaddress.IPv4Network, ipaddress.IPv4Address]:
    """Returns the smallest network, of at most /24, that holds all servers' management addresses,
    and the highest free address in it, for the controller."""
    taken = {ipaddress.IPv4Address(server.management) for server in plan.cluster.servers}
    network = ipaddress.IPv4Network((min(taken), 24), strict=False)
    while max(taken) not in network:
        network = network.supernet()
    for server in plan.cluster.servers:
        for nic in server.nics:
            if nic.network.overlaps(network):
                raise PlacewireError(
                    f"the lab's management network {network} overlaps rail {nic.rail}'s "
                    f"{nic.network}",
                    where=f"{server.name} {nic.name}",
                    remedy="give the servers management addresses in a network of their own",
                )
    candidate = network.broadcast_address - 1
    while candidate in taken:
        candidate -= 1
    return network, candidate


def _refuse_clashes(shape: LabShape) -> None:
    twice = [name for name, count in Counter(shape.namespaces).items() if count > 1]
    if twice:
        raise PlacewireError(
            f"two namespaces of the lab would be called {twice[0]}",
            remedy="name that server differently: the lab uses `controller` and `rail-…` itself",
        )
    for server in shape.servers:
        for nic in server.nics:
            if nic.name in (MANAGEMENT_INTERFACE, "lo", "ovs-netdev"):
                raise PlacewireError(
                    f"the lab has an interface {nic.name} of its own on each server",
                    where=f"{server.name} {nic.name}",
                    remedy="name the NIC differently, e.g. nic0",
                )
