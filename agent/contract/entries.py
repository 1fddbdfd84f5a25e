"""The entries of a server's network state: one type per collection, each with an identity key.

Rates here are wire bits per second, as HTB counts them (Ethernet header included). `nic` is the
physical interface's name; interfaces are kernel names; addresses are "a.b.c.d/len".

Ownership marks (nothing without one is ever changed or removed):
  OVSDB rows       external_ids:placewire = plan name
  OpenFlow flows   cookie & COOKIE_MASK == COOKIE
  rules, routes    protocol PROTOCOL, tables TABLE_BASE.., rule priorities RULE_PRIORITY_BASE..
  classifiers      tc filter preference in [CLASSIFIER_PREFERENCE_BASE, +1000) on an owned NIC
"""

from __future__ import annotations

import hashlib
from typing import ClassVar, Literal

from placewire.agent.contract.numbers import Integer
from placewire.frozen import Frozen

OWNER_KEY = "placewire"
COOKIE = 0x50_57_00_00_00_00_00_00
COOKIE_MASK = 0xFF_FF_00_00_00_00_00_00
PROTOCOL = 80
TABLE_BASE = 8000
TABLE_COUNT = 256
RULE_PRIORITY_BASE = 18000
RULE_PRIORITY_COUNT = 1000
FLOW_PRIORITY = 20480
# Short packets: those that are one are found before all others, and before them their length.
SHORT_FLOW_PRIORITY = FLOW_PRIORITY + 1
LENGTH_FLOW_PRIORITY = FLOW_PRIORITY + 2
CLASSIFIER_PREFERENCE_BASE = 20480
BRIDGE_PREFIX = "pw-"
_LONGEST_NAME = 15
_DIGEST_CHARACTERS = 5

# Queue 0 takes everything that nothing else claims; queue 1 takes acknowledgements and other
# short packets; pairs follow from FIRST_PAIR_QUEUE.
DEFAULT_QUEUE = 0
ACKNOWLEDGEMENT_QUEUE = 1
FIRST_PAIR_QUEUE = 2
LAST_QUEUE = 61439
# A TCP packet shorter than this that does not end a piece of data (PSH) is acknowledgement or
# control.
SHORT_PACKET_BYTES = 128

DatapathType = Literal["system", "netdev"]


class Bridge(Frozen):
    """An Open vSwitch bridge over one NIC; its internal interface (same name) holds the address."""

    collection: ClassVar[str] = "bridges"
    name: str
    nic: str
    datapath: DatapathType
    mtu_bytes: Integer = 1500

    @property
    def key(self) -> str:
        return self.name


class Address(Frozen):
    """An IPv4 address on an interface. An address that moves off a NIC is wanted on the bridge."""

    collection: ClassVar[str] = "addresses"
    interface: str
    address: str

    @property
    def key(self) -> str:
        return f"{self.interface} {self.address}"


class Shaper(Frozen):
    """The root of a NIC's queues: an HTB QoS of this rate."""

    collection: ClassVar[str] = "shapers"
    nic: str
    max_bits_per_second: Integer

    @property
    def key(self) -> str:
        return self.nic


class Queue(Frozen):
    """One HTB class. burst_bits bounds what goes out at once beyond min (and max) rate."""

    collection: ClassVar[str] = "queues"
    nic: str
    queue_id: Integer
    min_bits_per_second: Integer
    max_bits_per_second: Integer
    burst_bits: Integer
    purpose: str

    @property
    def key(self) -> str:
        return f"{self.nic} queue {self.queue_id}"


class Flow(Frozen):
    """Traffic from this server to `destination` leaves through this queue, forwarded normally; or
    every short packet of TCP where destination is None, wherever it goes."""

    collection: ClassVar[str] = "flows"
    bridge: str
    destination: str | None
    queue_id: Integer

    @property
    def key(self) -> str:
        to = "short packets" if self.destination is None else f"to {self.destination}"
        return f"{self.bridge} {to}"


class Classifier(Frozen):
    """A tc filter where the datapath does not honour set_queue: to `destination`, or every short
    packet where destination is None."""

    collection: ClassVar[str] = "classifiers"
    nic: str
    destination: str | None
    queue_id: Integer

    @property
    def key(self) -> str:
        return f"{self.nic} {'short packets' if self.destination is None else self.destination}"


class Rule(Frozen):
    collection: ClassVar[str] = "rules"
    priority: Integer
    source: str
    table: Integer

    @property
    def key(self) -> str:
        return f"{self.priority} from {self.source}"


class Route(Frozen):
    collection: ClassVar[str] = "routes"
    table: Integer
    destination: str
    interface: str
    source: str
    gateway: str | None = None

    @property
    def key(self) -> str:
        return f"table {self.table} {self.destination}"


class Sysctl(Frozen):
    """name in dots, e.g. net.ipv4.conf.pw-nic0.rp_filter"""

    collection: ClassVar[str] = "sysctls"
    name: str
    value: str

    @property
    def key(self) -> str:
        return self.name


class UnusedRow(Frozen):
    """A row of ours in Open vSwitch's database that no port uses, as where somebody deletes our
    bridge: the database keeps it for ever. Never part of a desired state."""

    collection: ClassVar[str] = "unused rows"
    table: Literal["QoS", "Queue"]
    uuid: str

    @property
    def key(self) -> str:
        return f"{self.table} {self.uuid}"


Entry = Bridge | Address | Shaper | Queue | Flow | Classifier | Rule | Route | Sysctl | UnusedRow
# Of a desired state.
COLLECTIONS: tuple[type[Entry], ...] = (
    Bridge, Address, Sysctl, Shaper, Queue, Flow, Classifier, Route, Rule,
)  # fmt: skip


def bridge_name(nic: str) -> str:
    """The bridge that takes a NIC over. At most 15 characters, the kernel's limit: where the NIC's
    name would make it longer, it ends in a digest of that name."""
    whole = BRIDGE_PREFIX + nic
    if len(whole) <= _LONGEST_NAME:
        return whole
    digest = hashlib.sha256(nic.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{whole[: _LONGEST_NAME - 1 - len(digest)]}-{digest}"
