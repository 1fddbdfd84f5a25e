"""Converts plan.yaml's cluster to a Cluster: payload rates, and the rails that carry the job."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.optimizer.chunks import low_water_bytes, window_bytes
from placewire.optimizer.cluster import (
    Cluster,
    Device,
    MessageTime,
    Nic,
    Pod,
    Server,
    Uplink,
    assumed_message_time,
)
from placewire.optimizer.cluster_plan.documents import DocumentError
from placewire.optimizer.cluster_plan.payload import payload_capacity, payload_fraction
from placewire.optimizer.cluster_plan.section import ChosenRails, PlanCluster, PlanNic, PlanPod
from placewire.optimizer.cluster_plan.values import MEASURED


def cluster_of(section: PlanCluster, rails: ChosenRails = None) -> Cluster:
    """rails: the plan's network.rails; NICs on other rails do not carry the job and are left out,
    and so are the uplinks of such rails.

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
    message = message_time_of(section)
    return Cluster(
        servers=servers,
        setup_latency_seconds=section.setup_latency_seconds,
        message_seconds=message.seconds,
        message_seconds_per_byte=message.seconds_per_byte,
        intra_server_bits_per_second=section.intra_server_bits_per_second,
        pods=tuple(_pod(pod, carrying, section) for pod in section.pods or ()),
    )


def message_time_of(section: PlanCluster, otherwise: MessageTime | None = None) -> MessageTime:
    """As the plan says, else as `otherwise` or, where that is None, as is assumed."""
    if otherwise is None:
        types = (device.type for server in section.servers for device in server.devices)
        otherwise = assumed_message_time(types)
    each, per_mib = section.message_seconds, section.message_seconds_per_mib
    return MessageTime(
        otherwise.seconds if each is None else each,
        otherwise.seconds_per_byte if per_mib is None else per_mib / 2**20,
    )


def _pod(pod: PlanPod, rails: Sequence[str], section: PlanCluster) -> Pod:
    """All NICs of a rail have one MTU, and so have their frames on the uplinks."""
    mtu = {nic.rail: nic.mtu_bytes for server in section.servers for nic in server.nics}
    return Pod(
        name=pod.name,
        servers=pod.servers,
        uplinks=tuple(
            Uplink(rail=rail, rate_bits_per_second=payload_capacity(pod.uplink_of(rail), mtu[rail]))
            for rail in rails
        ),
    )


def _nic(nic: PlanNic) -> Nic:
    rate = payload_capacity(nic.rate_bits_per_second, nic.mtu_bytes)
    return Nic(
        rail=nic.rail,
        rate_bits_per_second=rate,
        window_bytes=window_bytes(rate),
        low_water_bytes=low_water_bytes(rate),
        background_bits_per_second=nic.background_bits_per_second * payload_fraction(nic.mtu_bytes),
    )
