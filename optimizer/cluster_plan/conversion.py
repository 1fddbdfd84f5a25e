"""Converts plan.yaml's cluster to a Cluster: payload rates, and the rails that carry the job."""

from __future__ import annotations

from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.cluster_plan.documents import DocumentError
from placewire.optimizer.cluster_plan.payload import payload_capacity, payload_fraction
from placewire.optimizer.cluster_plan.section import ChosenRails, PlanCluster, PlanNic
from placewire.optimizer.cluster_plan.values import MEASURED
from placewire.optimizer.names import assumed_message_seconds


def cluster_of(section: PlanCluster, rails: ChosenRails = None) -> Cluster:
    """rails: the plan's network.rails; NICs on other rails do not carry the job and are left out.

    Raises DocumentError where the set-up latency is to be measured, so that it is not known here.
    """
    carrying = rails or section.rails
    if section.setup_latency_seconds is None:
        what = "only `controller apply` knows what it measured; give a duration, like 50us"
        raise DocumentError([("cluster.setup_latency", f"{MEASURED}: {what}")])
    servers = tuple(
        Server(
            name=server.name,
            devices=tuple(Device(type=d.type, memory_bytes=d.memory_bytes) for d in server.devices),
            nics=tuple(_nic(nic) for nic in server.nics if nic.rail in carrying),
        )
        for server in section.servers
    )
    return Cluster(
        servers=servers,
        setup_latency_seconds=section.setup_latency_seconds,
        message_seconds=message_seconds_of(section),
        intra_server_bits_per_second=section.intra_server_bits_per_second,
    )


def message_seconds_of(section: PlanCluster) -> float:
    """What a message costs each of its devices: as the plan says, else as is assumed."""
    if section.message_seconds is not None:
        return section.message_seconds
    return assumed_message_seconds(d.type for server in section.servers for d in server.devices)


def _nic(nic: PlanNic) -> Nic:
    return Nic(
        rail=nic.rail,
        rate_bits_per_second=payload_capacity(nic.rate_bits_per_second, nic.mtu_bytes),
        background_bits_per_second=nic.background_bits_per_second * payload_fraction(nic.mtu_bytes),
    )
