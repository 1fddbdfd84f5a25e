"""The kernel's side of shaping: HTB classes as they are, and our u32 classifiers on them.

Where the datapath ignores set_queue, a classifier on the HTB that Open vSwitch made for the NIC
takes its place: queue n is class 1:(n+1).
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from agent.contract.entries import CLASSIFIER_PREFERENCE_BASE, SHORT_PACKET_BYTES, Classifier
from agent.contract.state import EffectiveQueue, ForeignEntry
from agent.drivers.command import run
from agent.reconcile.effects import EffectError
from agent.reconcile.steps import EntryStep

# One unit of HTB's buffer is 64 ns (the kernel's PSCHED_SHIFT of 6).
_TICK_SECONDS = 64e-9
_HTB_HANDLE = 0x10000
_IPV4 = 0x0800
# Open vSwitch raises a class's burst to the NIC's MTU and this (3.1), whatever was asked.
_BURST_BEYOND_MTU_BYTES = 64
_SHORT_PREFERENCE = CLASSIFIER_PREFERENCE_BASE
_DESTINATION_PREFERENCE = CLASSIFIER_PREFERENCE_BASE + 1
_PREFERENCES = range(CLASSIFIER_PREFERENCE_BASE, CLASSIFIER_PREFERENCE_BASE + 1000)
# A mask on the total length finds packets below a power of two only.
_LENGTH_MASK = 0xFFFF & ~(SHORT_PACKET_BYTES - 1)
# The total length at offset 2 and the protocol, TCP, at offset 9 of the IPv4 header; behind it (20
# bytes) TCP's PSH flag, which the end of what was sent at once has, and acknowledgements have not.
# A short end of data must stay behind the data before it: what overtakes looks like a loss, and is
# sent again with all that was under way.
_SHORT_KEYS = (f"0x0000/0x{_LENGTH_MASK:04x}+2", "0x06/0xff+9", "0x00/0x08+33")
# The same as the kernel has them: words of 32 bits from those offsets.
_SHORT_MATCHES = {(0, _LENGTH_MASK << 16, 2), (0x06 << 24, 0xFF << 24, 9), (0, 0x08 << 24, 33)}

_HEADER = re.compile(
    r"^filter .*pref (?P<pref>\d+) u32 .*fh (?P<handle>[0-9a-f]+::[0-9a-f]+) .*"
    r"flowid (?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+)"
)
_ANY = re.compile(r"^filter .*pref (?P<pref>\d+) (?P<kind>\S+)")
_MATCH = re.compile(r"^\s+match (?P<value>[0-9a-f]{8})/(?P<mask>[0-9a-f]{8}) at (?P<at>\d+)")


def read_queues(nics: Iterable[str]) -> list[EffectiveQueue]:
    """The leaf classes of the HTB that Open vSwitch made, per NIC."""
    found = []
    with IPRoute() as netlink:
        for nic in nics:
            for index in netlink.link_lookup(ifname=nic):
                mtu_bytes = netlink.get_links(index)[0].get_attr("IFLA_MTU")
                for message in netlink.get_classes(index=index):
                    queue = _effective(nic, message, mtu_bytes)
                    if queue is not None:
                        found.append(queue)
    return sorted(found, key=lambda queue: (queue.nic, queue.queue_id))


def queue_id_of(message: Any) -> int | None:
    """Of a class, as netlink tells it; None: it is no queue of Open vSwitch's HTB."""
    minor = message["handle"] & 0xFFFF
    # 1:fffe is the root that Open vSwitch puts above all queues.
    if message.get_attr("TCA_KIND") != "htb" or minor in (0, 0xFFFE):
        return None
    return int(minor) - 1


def _effective(nic: str, message: Any, mtu_bytes: int) -> EffectiveQueue | None:
    queue_id, options = queue_id_of(message), message.get_attr("TCA_OPTIONS")
    if queue_id is None or options is None:
        return None
    parameters = options.get_attr("TCA_HTB_PARMS")
    rate = options.get_attr("TCA_HTB_RATE64") or parameters["rate"]
    ceiling = options.get_attr("TCA_HTB_CEIL64") or parameters["ceil"]
    return EffectiveQueue(
        nic=nic,
        queue_id=queue_id,
        min_bits_per_second=rate * 8,
        max_bits_per_second=ceiling * 8,
        burst_bytes=round(rate * parameters["buffer"] * _TICK_SECONDS),
        least_burst_bytes=mtu_bytes + _BURST_BEYOND_MTU_BYTES,
    )


class Filter:
    """One u32 filter in our preferences, as `tc filter show` prints it."""

    def __init__(self, preference: int, handle: str, class_id: int) -> None:
        self.preference = preference
        self.handle = handle
        self.class_id = class_id
        self.matches: set[tuple[int, int, int]] = set()

    @property
    def u32_handle(self) -> int:
        table, node = self.handle.split("::")
        return int(table, 16) << 20 | int(node, 16)

    def classifier(self, nic: str) -> Classifier | None:
        """None: not one that we would have written."""
        queue_id = (self.class_id & 0xFFFF) - 1
        if self.preference == _SHORT_PREFERENCE and self.matches == _SHORT_MATCHES:
            return Classifier(nic=nic, destination=None, queue_id=queue_id)
        if self.preference == _DESTINATION_PREFERENCE and len(self.matches) == 1:
            ((value, mask, at),) = self.matches
            if at == 16:
                length = mask.bit_count()
                network = IPv4Network((value, length))
                text = str(network).removesuffix("/32")
                return Classifier(nic=nic, destination=text, queue_id=queue_id)
        return None


def read_classifiers(nics: Iterable[str]) -> tuple[list[Classifier], list[ForeignEntry]]:
    """Ours, and what of others is in our preferences. NICs without an HTB have none."""
    ours: list[Classifier] = []
    foreign: list[ForeignEntry] = []
    for nic in nics:
        filters, strangers = _filters(nic)
        for item in filters:
            classifier = item.classifier(nic)
            if classifier is None:
                strangers.append(f"pref {item.preference} handle {item.handle}")
            else:
                ours.append(classifier)
        foreign += [
            ForeignEntry(collection="classifiers", key=nic, text=text) for text in strangers
        ]
    return sorted(ours, key=lambda c: c.key), foreign


def _filters(nic: str) -> tuple[list[Filter], list[str]]:
    filters: list[Filter] = []
    strangers: list[str] = []
    current: Filter | None = None
    for line in run(["tc", "filter", "show", "dev", nic]).splitlines():
        if (header := _HEADER.match(line)) and int(header["pref"]) in _PREFERENCES:
            class_id = int(header["major"], 16) << 16 | int(header["minor"], 16)
            current = Filter(int(header["pref"]), header["handle"], class_id)
            filters.append(current)
        elif (match := _MATCH.match(line)) and current is not None:
            current.matches.add((int(match["value"], 16), int(match["mask"], 16), int(match["at"])))
        elif any_filter := _ANY.match(line):
            current = None
            if int(any_filter["pref"]) in _PREFERENCES and any_filter["kind"] != "u32":
                strangers.append(line.strip())
    return filters, strangers


def change_classifiers(steps: Sequence[EntryStep]) -> None:
    """Of each NIC: replaced ones are added anew first, then the former are removed. Raises
    EffectError."""
    with IPRoute() as netlink:
        for nic, changes in _by_nic(steps).items():
            indexes = netlink.link_lookup(ifname=nic)
            if not indexes:
                raise EffectError(f"classifier {changes[0].entry.key}: the NIC is gone")
            gone = {step.before for step in changes if step.before is not None}
            former = [f for f in _filters(nic)[0] if f.classifier(nic) in gone] if gone else []
            for step in changes:
                if isinstance(step.after, Classifier):
                    _add(netlink, indexes[0], step.after)
            for item in former:
                _remove(netlink, indexes[0], item.preference, item.u32_handle)
            if former:
                left = {item.preference for item in _filters(nic)[0]}
                for preference in {item.preference for item in former} - left:
                    _remove_empty(netlink, indexes[0], preference)


def _by_nic(steps: Sequence[EntryStep]) -> dict[str, list[EntryStep]]:
    found: dict[str, list[EntryStep]] = {}
    for step in steps:
        assert isinstance(step.entry, Classifier)
        found.setdefault(step.entry.nic, []).append(step)
    return found


def _add(netlink: Any, index: int, classifier: Classifier) -> None:
    if classifier.destination is None:
        preference, keys = _SHORT_PREFERENCE, list(_SHORT_KEYS)
    else:
        network = IPv4Network(classifier.destination)
        value, mask = (int.from_bytes(a.packed) for a in (network.network_address, network.netmask))
        preference, keys = _DESTINATION_PREFERENCE, [f"0x{value:08x}/0x{mask:08x}+16"]
    netlink.tc(
        "add-filter",
        "u32",
        index,
        parent=_HTB_HANDLE,
        prio=preference,
        protocol=_IPV4,
        target=_HTB_HANDLE | (classifier.queue_id + 1),
        keys=keys,
    )


def _remove(netlink: Any, index: int, preference: int, handle: int) -> None:
    netlink.tc(
        "del-filter",
        index=index,
        handle=handle,
        parent=_HTB_HANDLE,
        # Without a kind, pyroute2 leaves this field as it is given: preference and protocol.
        info=preference << 16 | socket.htons(_IPV4),
    )


def _remove_empty(netlink: Any, index: int, preference: int) -> None:
    """The kernel keeps an empty hash table while another of the same qdisc has filters, and
    removes the last one by itself."""
    try:
        _remove(netlink, index, preference, 0)
    except NetlinkError as error:
        if error.code != errno.ENOENT:
            raise
