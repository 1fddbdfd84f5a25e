"""Reads the kernel's HTB classes, and reads and changes our u32 classifiers on them.

Classifiers take the place of set_queue where the datapath ignores it: queue n is class 1:(n+1).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from pyroute2 import IPRoute

from placewire.agent.contract.entries import (
    CLASSIFIER_PREFERENCES,
    SHORT_PACKET_BYTES,
    Classifier,
)
from placewire.agent.contract.state import EffectiveQueue, ForeignEntry
from placewire.agent.drivers.command import run
from placewire.agent.reconcile.steps import EntryStep

# One unit of HTB's buffer is 64 ns (the kernel's PSCHED_SHIFT is 6).
_TICK_SECONDS = 64e-9
# Major number of the HTB that Open vSwitch makes, in tc's notation.
_HTB = "1"
# Open vSwitch (3.1) raises a class's burst to the NIC's MTU plus this, whatever was asked.
_BURST_BEYOND_MTU_BYTES = 64
_SHORT_PREFERENCE, _DESTINATION_PREFERENCE = CLASSIFIER_PREFERENCES[:2]
# A mask on the total length can only find packets below a power of two.
_LENGTH_MASK = 0xFFFF & ~(SHORT_PACKET_BYTES - 1)
# Words of 32 bits as u32 compares them: (value, mask, offset from the start of the IPv4 header).
# They cover the total length at offset 2, the protocol (TCP) at offset 9, and behind the header (20
# bytes) TCP's PSH flag, which the end of a piece of data has and an acknowledgement has not. The
# short end of a piece of data must stay behind the data before it: if it overtakes, TCP takes the
# gap for a loss, and sends all that was under way again.
_SHORT_MATCHES: Sequence[tuple[int, int, int]] = (
    (0, _LENGTH_MASK, 0),
    (0x06 << 16, 0xFF << 16, 8),
    (0, 0x08 << 16, 32),
)
_DESTINATION_OFFSET = 16

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
    """The queue of a class as netlink shows it; None: it is no queue of Open vSwitch's HTB."""
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


@dataclass
class Filter:
    """One u32 filter in our preferences, as `tc filter show` prints it."""

    preference: int
    handle: str
    class_id: int
    matches: set[tuple[int, int, int]] = field(default_factory=set)

    def classifier(self, nic: str) -> Classifier | None:
        """None: it is not as we would have written it."""
        queue_id = (self.class_id & 0xFFFF) - 1
        if self.preference == _SHORT_PREFERENCE and self.matches == set(_SHORT_MATCHES):
            return Classifier(nic=nic, destination=None, queue_id=queue_id)
        if self.preference == _DESTINATION_PREFERENCE and len(self.matches) == 1:
            ((value, mask, at),) = self.matches
            if at == _DESTINATION_OFFSET:
                text = str(IPv4Network((value, mask.bit_count()))).removesuffix("/32")
                return Classifier(nic=nic, destination=text, queue_id=queue_id)
        return None


def read_classifiers(nics: Iterable[str]) -> tuple[list[Classifier], list[ForeignEntry]]:
    """Our classifiers, and foreign filters in our preferences. NICs without an HTB have none."""
    ours: list[Classifier] = []
    foreign: list[ForeignEntry] = []
    for nic in nics:
        found = _filters(nic)
        strangers = list(found.strangers)
        for item in found.filters:
            classifier = item.classifier(nic)
            if classifier is None:
                strangers.append(f"pref {item.preference} handle {item.handle}")
            else:
                ours.append(classifier)
        foreign += [
            ForeignEntry(collection="classifiers", key=nic, text=text) for text in strangers
        ]
    return sorted(ours, key=lambda c: c.key), foreign


class _Filters(NamedTuple):
    """filters: u32 filters in our preferences. strangers: lines of other filters there. empty: the
    preferences of ours that hold a hash table with nothing in it."""

    filters: Sequence[Filter]
    strangers: Sequence[str]
    empty: Collection[int]


def _filters(nic: str) -> _Filters:
    filters: list[Filter] = []
    strangers: list[str] = []
    tables: set[int] = set()
    current: Filter | None = None
    for line in run(["tc", "filter", "show", "dev", nic]).splitlines():
        if (header := _HEADER.match(line)) and int(header["pref"]) in CLASSIFIER_PREFERENCES:
            class_id = int(header["major"], 16) << 16 | int(header["minor"], 16)
            current = Filter(int(header["pref"]), header["handle"], class_id)
            filters.append(current)
        elif (match := _MATCH.match(line)) and current is not None:
            current.matches.add((int(match["value"], 16), int(match["mask"], 16), int(match["at"])))
        elif any_filter := _ANY.match(line):
            current = None
            if int(any_filter["pref"]) in CLASSIFIER_PREFERENCES:
                if any_filter["kind"] == "u32":
                    tables.add(int(any_filter["pref"]))
                else:
                    strangers.append(line.strip())
    return _Filters(filters, strangers, tables - {item.preference for item in filters})


def change_classifiers(steps: Sequence[EntryStep]) -> None:
    """Adds all new and changed ones of a NIC, then removes the former ones. Raises EffectError."""
    by_nic: dict[str, list[EntryStep]] = defaultdict(list)
    for step in steps:
        assert isinstance(step.entry, Classifier)
        by_nic[step.entry.nic].append(step)
    for nic, changes in by_nic.items():
        gone = {step.before for step in changes if step.before is not None}
        former = [f for f in _filters(nic).filters if f.classifier(nic) in gone] if gone else []
        _tc(
            *(_adding(step.after) for step in changes if isinstance(step.after, Classifier)),
            *(_removing(nic, item.preference, f"handle {item.handle} u32") for item in former),
        )
        if former:
            # The kernel itself removes a qdisc's last preference, but no empty one beside others.
            empty = {item.preference for item in former}.intersection(_filters(nic).empty)
            _tc(*(_removing(nic, preference) for preference in sorted(empty)))


def _adding(classifier: Classifier) -> str:
    if classifier.destination is None:
        preference, matches = _SHORT_PREFERENCE, _SHORT_MATCHES
    else:
        network = IPv4Network(classifier.destination)
        value, mask = (int.from_bytes(a.packed) for a in (network.network_address, network.netmask))
        preference, matches = _DESTINATION_PREFERENCE, ((value, mask, _DESTINATION_OFFSET),)
    words = " ".join(f"match u32 {value:#x} {mask:#x} at {at}" for value, mask, at in matches)
    return (
        f"filter add dev {classifier.nic} parent {_HTB}: protocol ip pref {preference} u32 {words} "
        f"flowid {_HTB}:{classifier.queue_id + 1:x}"
    )


def _removing(nic: str, preference: int, which: str = "") -> str:
    return f"filter del dev {nic} parent {_HTB}: protocol ip pref {preference} {which}"


def _tc(*commands: str) -> None:
    """Runs all commands in one process, up to the first that fails. Raises EffectError."""
    if commands:
        run(["tc", "-batch", "-"], stdin="\n".join(commands) + "\n")
