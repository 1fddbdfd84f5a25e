"""The entries of a server's network state: one type per collection, each with a key.

Rates are wire bits per second, as HTB counts them (Ethernet header included). `nic` is the
physical interface's name; interfaces are kernel names; addresses are "a.b.c.d/len".

Placewire never changes or removes anything that lacks one of its marks:
  OVSDB rows       external_ids:placewire = plan name
  OpenFlow flows   cookie & COOKIE_MASK == COOKIE
  rules, routes    protocol PROTOCOL; tables TABLES, rule priorities RULE_PRIORITIES
  classifiers      tc filter preference in CLASSIFIER_PREFERENCES on a NIC that Placewire took over
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from placewire.agent.contract.numbers import Integer
from placewire.frozen import Frozen

OWNER_KEY = "placewire"
COOKIE = 0x50_57_00_00_00_00_00_00
COOKIE_MASK = 0xFF_FF_00_00_00_00_00_00
PROTOCOL = 80
TABLE_BASE = 8000
TABLES = range(TABLE_BASE, TABLE_BASE + 256)
RULE_PRIORITY_BASE = 18000
RULE_PRIORITIES = range(RULE_PRIORITY_BASE, RULE_PRIORITY_BASE + 1000)
FLOW_PRIORITY = 20480
# Higher, so that a packet's length is checked first, and short packets are matched next.
SHORT_FLOW_PRIORITY = FLOW_PRIORITY + 1
LENGTH_FLOW_PRIORITY = FLOW_PRIORITY + 2
CLASSIFIER_PREFERENCES = range(20480, 21480)
BRIDGE_PREFIX = "pw-"
# The only sysctls that Placewire reads back and writes: these, of bridges and NICs.
SYSCTL_PREFIX = "net.ipv4.conf."
SYSCTL_KEYS = ("rp_filter", "arp_ignore", "arp_announce")
# IFNAMSIZ is 16 with the terminating zero.
LONGEST_INTERFACE_NAME = 15
_DIGEST_CHARACTERS = 5
# The kernel refuses these characters in the name of an interface (dev_valid_name).
_KERNEL_INTERFACE = re.compile(r"[^\s/:\0]+")

# Queue 0 takes everything that nothing else claims; queue 1 takes acknowledgements and other
# short packets; the queues of pairs begin at FIRST_PAIR_QUEUE.
DEFAULT_QUEUE = 0
ACKNOWLEDGEMENT_QUEUE = 1
FIRST_PAIR_QUEUE = 2
LAST_QUEUE = 61439
# A shorter TCP packet that does not end a piece of data (no PSH) is acknowledgement or control.
SHORT_PACKET_BYTES = 128

DatapathType = Literal["system", "netdev"]


class _Entry(Frozen):
    """key: names the entry within its collection; made of fields by `key_format`."""

    collection: ClassVar[str]
    key_format: ClassVar[str]

    @property
    def key(self) -> str:
        return self.key_format.format_map(vars(self))


class Bridge(_Entry):
    """An Open vSwitch bridge over one NIC; its interface of the same name holds the address."""

    collection: ClassVar[str] = "bridges"
    key_format: ClassVar[str] = "{name}"
    name: str
    nic: str
    datapath: DatapathType
    mtu_bytes: Integer = 1500


class Address(_Entry):
    """An address of an interface; in a desired state an IPv4 address that Placewire gives to a
    bridge."""

    collection: ClassVar[str] = "addresses"
    key_format: ClassVar[str] = "{interface} {address}"
    interface: str
    address: str


class Shaper(_Entry):
    """The root of a NIC's queues: an HTB QoS of this rate."""

    collection: ClassVar[str] = "shapers"
    key_format: ClassVar[str] = "{nic}"
    nic: str
    max_bits_per_second: Integer


# Open vSwitch raises a class's rate to this, whatever was asked.
LEAST_CLASS_BITS_PER_SECOND = 12_000


class Queue(_Entry):
    """One HTB class. burst_bits: how much may go out at once beyond its min (and max) rate."""

    collection: ClassVar[str] = "queues"
    key_format: ClassVar[str] = "{nic} queue {queue_id}"
    nic: str
    queue_id: Integer
    min_bits_per_second: Integer
    max_bits_per_second: Integer
    burst_bits: Integer
    purpose: str


class Flow(_Entry):
    """Sends this server's traffic to `destination` through one queue and forwards it normally.
    destination None: every short TCP packet, wherever it goes."""

    collection: ClassVar[str] = "flows"
    bridge: str
    destination: str | None
    queue_id: Integer

    @property
    def key(self) -> str:
        to = "short packets" if self.destination is None else f"to {self.destination}"
        return f"{self.bridge} {to}"


class Classifier(_Entry):
    """Does what a Flow does, as a tc filter, where the datapath does not obey set_queue."""

    collection: ClassVar[str] = "classifiers"
    nic: str
    destination: str | None
    queue_id: Integer

    @property
    def key(self) -> str:
        return f"{self.nic} {'short packets' if self.destination is None else self.destination}"


class Rule(_Entry):
    collection: ClassVar[str] = "rules"
    key_format: ClassVar[str] = "{priority} from {source}"
    priority: Integer
    source: str
    table: Integer


class Route(_Entry):
    collection: ClassVar[str] = "routes"
    key_format: ClassVar[str] = "table {table} {destination}"
    table: Integer
    destination: str
    interface: str
    source: str
    gateway: str | None = None


def _sysctl_name(name: str) -> str:
    """Raises ValueError for the name of any file but those of SYSCTL_KEYS of one interface: names
    come from messages, disks and marks, and the agent writes the file."""
    interface, _, key = name.removeprefix(SYSCTL_PREFIX).rpartition(".")
    if not name.startswith(SYSCTL_PREFIX) or key not in SYSCTL_KEYS:
        raise ValueError(f"not {SYSCTL_PREFIX}INTERFACE. and one of {', '.join(SYSCTL_KEYS)}")
    if interface in ("all", "default"):
        raise ValueError(f"a setting of the whole server, not of one interface: {interface}")
    if interface in (".", "..") or not _KERNEL_INTERFACE.fullmatch(interface):
        raise ValueError("no interface can have this name")
    return name


class Sysctl(_Entry):
    """name: with dots, for example net.ipv4.conf.pw-nic0.rp_filter; always of SYSCTL_KEYS of one
    interface."""

    collection: ClassVar[str] = "sysctls"
    key_format: ClassVar[str] = "{name}"
    name: Annotated[str, AfterValidator(_sysctl_name)]
    value: str

    @property
    def interface(self) -> str:
        return self.name.removeprefix(SYSCTL_PREFIX).rpartition(".")[0]


class UnusedRow(_Entry):
    """A row of Placewire's in Open vSwitch's database that no port uses, for example after somebody
    deleted its bridge. The database never drops it. Never part of a desired state."""

    collection: ClassVar[str] = "unused rows"
    key_format: ClassVar[str] = "{table} {uuid}"
    table: Literal["QoS", "Queue"]
    uuid: str


Entry = Bridge | Address | Shaper | Queue | Flow | Classifier | Rule | Route | Sysctl | UnusedRow
# The collections of a desired state, in the order in which entries can be added.
COLLECTIONS: tuple[type[Entry], ...] = (
    Bridge, Address, Sysctl, Shaper, Queue, Flow, Classifier, Route, Rule,
)  # fmt: skip


def bridge_name(nic: str) -> str:
    """The name of a NIC's bridge. Too long a one is cut, and ends in a digest of the NIC's name."""
    whole = BRIDGE_PREFIX + nic
    if len(whole) <= LONGEST_INTERFACE_NAME:
        return whole
    digest = hashlib.sha256(nic.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{whole[: LONGEST_INTERFACE_NAME - 1 - _DIGEST_CHARACTERS]}-{digest}"
