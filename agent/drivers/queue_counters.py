"""Reads what the kernel has counted in each queue: one netlink request per NIC, nothing kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.drivers.traffic_control import queue_id_of
from placewire.agent.reconcile.effects import UnreadableError


class QueueCounters(NamedTuple):
    """Counted since the class was made; Open vSwitch makes it anew with its NIC's queues."""

    nic: str
    queue_id: int
    sent_bytes: int
    sent_packets: int
    dropped_packets: int
    backlog_bytes: int


def read_queue_counters(nics: Iterable[str]) -> list[QueueCounters]:
    """The counters of those NICs that exist. Raises UnreadableError."""
    found = []
    try:
        with IPRoute() as netlink:
            for nic in nics:
                for index in netlink.link_lookup(ifname=nic):
                    classes = netlink.get_classes(index=index)
                    found += [c for m in classes if (c := _counters(nic, m)) is not None]
    except (NetlinkError, OSError) as error:
        raise UnreadableError(f"the queues' counters cannot be read: {error}") from error
    return sorted(found, key=lambda counters: (counters.nic, counters.queue_id))


def _counters(nic: str, message: Any) -> QueueCounters | None:
    queue_id, stats = queue_id_of(message), message.get_attr("TCA_STATS2")
    if queue_id is None or stats is None:
        return None
    basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
    return QueueCounters(
        nic=nic,
        queue_id=queue_id,
        sent_bytes=basic["bytes"],
        sent_packets=basic["packets"],
        dropped_packets=queue["drops"],
        backlog_bytes=queue["backlog"],
    )
