"""Reads the kernel's HTB classes, and reads and changes our u32 classifiers on them; finds what
others have on them.

Classifiers take the place of set_queue where the datapath ignores it: queue n is class 1:(n+1).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from shlex import quote
from typing import Any, NamedTuple

from pyroute2 import IPRoute

from placewire.agent.contract.entries import (
    CLASSIFIER_PREFERENCES,
    DEFAULT_QUEUE,
    SHORT_PACKET_BYTES,
    Classifier,
    Queue,
)
from placewire.agent.contract.state import EffectiveQueue, ForeignEntry
from placewire.agent.drivers.command import run
from placewire.agent.drivers.disciplines import Discipline
from placewire.agent.reconcile.command_words import quoted
from placewire.agent.reconcile.foreign_kinds import CLASSES, DISCIPLINES, FILTERS
from placewire.agent.reconcile.steps import EntryStep

# One unit of HTB's buffer is 64 ns (the kernel's PSCHED_SHIFT is 6).
_TICK_SECONDS = 64e-9
# Major number of the HTB that Open vSwitch makes, in tc's notation; and the minor number of the
# class that it puts above all queues.
_HTB = "1"
HTB_HANDLE = f"{_HTB}:"
_INNER = 0xFFFE
_INNER_CLASS = f"{_HTB}:{_INNER:x}"
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
    r"^filter .*pref (?P<pref>\d+) u32 .*fh (?P<handle>[0-9a-f]+::[0-9a-f]+)"
    r"(?: .*flowid (?P<class>[0-9a-f]+:[0-9a-f]+))?"
)
_ANY = re.compile(
    r"^filter (?:parent (?P<parent>\S+) )?.*protocol (?P<protocol>\S+) pref (?P<pref>\d+) "
    r"(?P<kind>\S+)(?: chain (?P<chain>\d+))?"
)
_LEADS = re.compile(r"\b(?:flowid|classid) ([0-9a-f]+:[0-9a-f]+)")
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
    if message.get_attr("TCA_KIND") != "htb" or minor in (0, _INNER):
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
            network = _network(value, mask)
            if at == _DESTINATION_OFFSET and network is not None:
                text = str(network).removesuffix("/32")
                return Classifier(nic=nic, destination=text, queue_id=queue_id)
        return None


def _network(value: int, mask: int) -> IPv4Network | None:
    """None where the mask has gaps, or the value has bits that the mask lacks: others can have the
    kernel compare any bits."""
    behind = mask ^ 0xFFFFFFFF
    if behind & (behind + 1) or value & behind:
        return None
    return IPv4Network((value, mask.bit_count()))


def read_classifiers(nics: Iterable[str]) -> tuple[list[Classifier], list[ForeignEntry]]:
    """Our classifiers, and filters of others on the same HTB. NICs without an HTB have none."""
    ours: list[Classifier] = []
    foreign: list[ForeignEntry] = []
    for nic in nics:
        found = _filters(nic)
        ours += [c for item in found.filters if (c := item.classifier(nic)) is not None]
        foreign += _strangers(nic, found)
    return sorted(ours, key=lambda c: c.key), foreign


def read_foreign(
    nic: str,
    classes: Collection[int],
    disciplines: Iterable[Discipline],
    ours: Collection[int] | None,
) -> list[ForeignEntry]:
    """What others have on the classes of the NIC's HTB, and classes of theirs.

    classes: the queues that the kernel has (read_queues). disciplines: of the NIC. ours: the queues
    of the database; None: they are in no database any more, so that no class counts as theirs.
    """
    found = [
        ForeignEntry(
            collection=DISCIPLINES,
            key=f"{nic} {one.parent}",
            text=f"{one.kind} queueing discipline {one.handle} of class {one.parent}",
            on=_on(nic, class_id),
            remedy=f"tc qdisc del dev {quote(nic)} parent {one.parent}",
        )
        for one in disciplines
        if (class_id := _class_id(one.parent)) is not None
    ]
    found += [
        ForeignEntry(
            collection=CLASSES,
            key=f"{nic} {name}",
            text=f"class {name}",
            on=nic,
            remedy=f"tc class del dev {quote(nic)} classid {name}",
        )
        # Where the database has no default queue, Open vSwitch makes its class by itself.
        for queue_id in sorted(
            set(classes) - {DEFAULT_QUEUE} - set(classes if ours is None else ours)
        )
        for name in [f"{_HTB}:{queue_id + 1:x}"]
    ]
    parents = [_INNER_CLASS, *(f"{_HTB}:{queue_id + 1:x}" for queue_id in sorted(classes))]
    if classes and _tc(*(f"filter show dev {nic} parent {parent}" for parent in parents)).strip():
        for parent in _with_filters(nic, parents):
            said = run(["tc", "filter", "show", "dev", nic, "parent", parent])
            found += _all_foreign(nic, parent, parse_filters(said))
    return found


def _with_filters(nic: str, parents: Iterable[str]) -> list[str]:
    """Those of these classes that have a filter. A process of tc for each class would take seconds
    on a NIC with hundreds of them."""
    with IPRoute() as netlink:
        return [
            parent
            for index in netlink.link_lookup(ifname=nic)
            for parent in parents
            if list(netlink.get_filters(index=index, parent=_class_id(parent)))
        ]


def read_on_left(nic: str, disciplines: Iterable[Discipline]) -> list[ForeignEntry]:
    """What others have on an HTB of which nothing is in the database any more."""
    classes = [queue.queue_id for queue in read_queues([nic])]
    return [*_strangers(nic, _filters(nic)), *read_foreign(nic, classes, disciplines, None)]


class Other(NamedTuple):
    """A filter of another program, or all of one preference that lead to one class. class_id: None
    where it leads to no class."""

    kind: str
    protocol: str
    preference: int
    chain: int
    class_id: int | None


class Filters(NamedTuple):
    """filters: u32 filters in our preferences. others: filters of any other kind or preference.
    empty: the preferences of ours that hold a hash table with nothing in it."""

    filters: Sequence[Filter]
    others: Sequence[Other]
    empty: Collection[int]


def _filters(nic: str) -> Filters:
    return parse_filters(run(["tc", "filter", "show", "dev", nic]))


def parse_filters(text: str) -> Filters:
    """text: of `tc filter show dev NIC`."""
    filters: list[Filter] = []
    others: list[Other] = []
    tables: set[int] = set()
    current: Filter | None = None
    for line in text.splitlines():
        if (header := _HEADER.match(line)) and int(header["pref"]) in CLASSIFIER_PREFERENCES:
            class_id = _class_id(header["class"] or "")
            current = Filter(int(header["pref"]), header["handle"], class_id or 0)
            filters.append(current)
        elif (match := _MATCH.match(line)) and current is not None:
            current.matches.add((int(match["value"], 16), int(match["mask"], 16), int(match["at"])))
        elif found := _ANY.match(line):
            current = None
            preference, leads = int(found["pref"]), _LEADS.search(line)
            if found["kind"] == "u32" and preference in CLASSIFIER_PREFERENCES:
                tables.add(preference)
                continue
            class_id = _class_id(leads[1]) if leads else None
            chain = int(found["chain"] or 0)
            others.append(Other(found["kind"], found["protocol"], preference, chain, class_id))
    # tc prints a line for a preference, and for a hash table, before those of its filters.
    leading = {(o.preference, o.chain) for o in others if o.class_id is not None}
    others = [o for o in others if o.class_id or (o.preference, o.chain) not in leading]
    empty = tables - {item.preference for item in filters}
    return Filters(filters, tuple(dict.fromkeys(others)), empty)


def _strangers(nic: str, found: Filters) -> Iterator[ForeignEntry]:
    """The filters of others on the HTB itself. One among our preferences is in our place."""
    written = [item for item in found.filters if item.classifier(nic) is None]
    for entry in _all_foreign(nic, HTB_HANDLE, found._replace(filters=written)):
        preference = int(entry.key.split()[-1])
        in_our_place = {"collection": "classifiers", "key": nic}
        yield (
            entry.model_copy(update=in_our_place) if preference in CLASSIFIER_PREFERENCES else entry
        )


def _all_foreign(nic: str, parent: str, found: Filters) -> Iterator[ForeignEntry]:
    """The key ends in the preference."""
    unlike_ours = (
        (
            item.preference,
            item.class_id,
            f"u32 filter {item.handle}",
            f"protocol ip pref {item.preference} handle {item.handle} u32",
        )
        for item in found.filters
    )
    others = (
        (
            other.preference,
            other.class_id,
            f"{other.kind} filter",
            f"{f'chain {other.chain} ' if other.chain else ''}protocol {other.protocol} pref "
            f"{other.preference}",
        )
        for other in found.others
    )
    # A filter that leads to a class keeps the kernel from removing that class.
    leaf = None if parent in (HTB_HANDLE, _INNER_CLASS) else _class_id(parent)
    for preference, class_id, what, words in (*unlike_ours, *others):
        on = _on(nic, class_id if leaf is None else leaf)
        yield ForeignEntry(
            collection=FILTERS,
            key=f"{on} {parent} preference {preference}",
            text=f"{what} of preference {preference} on {parent} of {nic}",
            on=on,
            remedy=f"tc filter del dev {quote(nic)} parent {parent} {quoted(words)}",
        )


def _class_id(name: str) -> int | None:
    """The number of a class as tc writes it; None: it is no class of our HTB."""
    major, colon, minor = name.partition(":")
    if not (colon and minor) or major != _HTB:
        return None
    return int(major, 16) << 16 | int(minor, 16)


def _on(nic: str, class_id: int | None) -> str:
    """The key of the queue whose class that is; else the NIC."""
    minor = (class_id or 0) & 0xFFFF
    if minor in (0, _INNER):
        return nic
    return Queue.key_format.format(nic=nic, queue_id=minor - 1)


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
        f"filter add dev {classifier.nic} parent {HTB_HANDLE} protocol ip pref {preference} u32 "
        f"{words} flowid {_HTB}:{classifier.queue_id + 1:x}"
    )


def _removing(nic: str, preference: int, which: str = "") -> str:
    return f"filter del dev {nic} parent {HTB_HANDLE} protocol ip pref {preference} {which}"


def _tc(*commands: str) -> str:
    """Runs all commands in one process, up to the first that fails; returns what they print. Raises
    EffectError."""
    return run(["tc", "-batch", "-"], stdin="\n".join(commands) + "\n") if commands else ""
