"""What a server should be, what it is, and the difference: desired, observed, change."""

from __future__ import annotations

import hashlib
from ipaddress import ip_interface
from typing import Literal, Self

from pydantic import model_validator

from placewire.agent.contract.entries import (
    COLLECTIONS,
    Address,
    Bridge,
    Classifier,
    Entry,
    Flow,
    Queue,
    Route,
    Rule,
    Shaper,
    Sysctl,
    UnusedRow,
)
from placewire.agent.contract.numbers import Count, Generation, ToldSeconds
from placewire.agent.contract.places import PciPlace
from placewire.frozen import Frozen

DriftPolicy = Literal["heal", "report"]


class Collections(Frozen):
    """The collections of entries that desired and observed states share."""

    bridges: tuple[Bridge, ...] = ()
    addresses: tuple[Address, ...] = ()
    sysctls: tuple[Sysctl, ...] = ()
    shapers: tuple[Shaper, ...] = ()
    queues: tuple[Queue, ...] = ()
    flows: tuple[Flow, ...] = ()
    classifiers: tuple[Classifier, ...] = ()
    routes: tuple[Route, ...] = ()
    rules: tuple[Rule, ...] = ()

    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order in which they can be added."""
        return tuple(entry for kind in COLLECTIONS for entry in getattr(self, kind.collection))


class DesiredState(Collections):
    """generation: only goes up on a server. plan_digest: names the decision that this state is part
    of. take_over: the NICs whose own address may move to their bridge; the agent refuses a state
    where another NIC of it holds an address. drift: whether the agent heals what other programs
    change while this state is in force, or only reports it."""

    server: str
    plan_name: str
    plan_digest: str
    generation: Generation
    take_over: tuple[str, ...] = ()
    drift: DriftPolicy = "heal"

    @property
    def content_digest(self) -> str:
        """A digest of the state without its generation."""
        text = self.model_dump_json(exclude={"generation"})
        return hashlib.sha256(text.encode()).hexdigest()


# A router may have thousands, and all of them would travel in each message about its NICs.
MOST_DOUBLED = 50


class NicFacts(Frozen):
    """One NIC as the agent found it.

    addresses: its own, of global scope, of IPv4 and IPv6.
    bridge: the bridge that it is a port of, whoever made that bridge.
    address_commands: addresses as `ip address add` accepts them, with "dynamic" where they expire,
    and with flags that it does not accept, such as "temporary" and "dadfailed".
    routes: those through it, of IPv4 and IPv6, as `ip route` accepts them, without Placewire's and
    those that the kernel makes by itself. A default route of IPv6 is one to ::/0.
    advertised_routes: those that the kernel made of a router's advertisement; the first 50 only.
    root_qdisc: kind of a queueing discipline that somebody set; None: the kernel's default.
    receiving_qdisc: kind of a discipline for what it receives (ingress, clsact) that somebody set.
    carrier: whether the cable's other end is there; None: not known, for example while it is down.
    promiscuous: whether a program set it so, as ovs-vswitchd's userspace datapath does.
    left_by_switch: it is no bridge's port, and its queueing discipline is an HTB made by
    ovs-vswitchd, which leaves it behind where a port is removed before its QoS.
    least_mtu_bytes, largest_mtu_bytes: what its driver accepts; None: the driver does not say.
    link_type, kind: in the words of `ip -d link`, for example "ether" and "macvlan"; kind is "" for
    an adapter's own interface. resolves_neighbours: False where it is set to NOARP or POINTOPOINT.
    lost_with_addresses: entries that somebody set and that are lost with the NIC's addresses, as
    `ip` names them: "neigh 10.7.0.9 dev nic0", "neigh proxy …", "route local …". The kernel drops
    those of IPv4 with the last address; neighbours of IPv6 stay and are of no use.
    standing: what would be lost or cut off if a NIC that is down, or was taken over, were set down:
    "interface vlan7", "address 10.99.0.7/24", "route …", "neighbour …" and the like; in no hello.
    nexthops: nexthop objects over it, as `ip nexthop` names them: "id 7 via 10.7.0.2 dev nic0".
    doubled_routes: of `routes`, those in whose place (table, destination, TOS and metric) there is
    another route as well; at most MOST_DOUBLED. other_names: alternative ones (`altname` of `ip`).
    place: None for one that is on no PCI bus.
    """

    name: str
    mac: str
    mtu_bytes: Count
    up: bool
    speed_bits_per_second: Count | None
    driver: str | None
    rdma: bool
    addresses: tuple[str, ...]
    bridge: str | None
    address_commands: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    advertised_routes: tuple[str, ...] = ()
    root_qdisc: str | None = None
    receiving_qdisc: str | None = None
    carrier: bool | None = None
    promiscuous: bool = False
    left_by_switch: bool = False
    least_mtu_bytes: Count | None = None
    largest_mtu_bytes: Count | None = None
    link_type: str = "ether"
    kind: str = ""
    resolves_neighbours: bool = True
    lost_with_addresses: tuple[str, ...] = ()
    doubled_routes: tuple[str, ...] = ()
    nexthops: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()
    place: PciPlace | None = None


class ForeignEntry(Frozen):
    """Something of another program in a place that Placewire uses, or on what Placewire made. The
    agent neither changes nor removes it (reconcile/hold_back.py).

    key: the key of the entry of Placewire's in whose place it is; else a name of its own.
    on: what it goes with: the name of a bridge, NIC or queue of Placewire's; "": it would stay.
    remedy: the command that removes it, for root on this server; "" where there is none.
    """

    collection: str
    key: str
    text: str
    on: str = ""
    remedy: str = ""


class UnopenedNic(Frozen):
    """A NIC that is a port of a bridge of Placewire's in Open vSwitch's database, and that
    ovs-vswitchd does not have open: no packet passes. why: what the database says; "": nothing."""

    nic: str
    why: str = ""

    @property
    def sentence(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"ovs-vswitchd does not have NIC {self.nic} open{why}"


class EffectiveQueue(Frozen):
    """An HTB class as the kernel has it (tc), whatever OVSDB says. least_burst_bytes: Open vSwitch
    raises a smaller burst to this, which depends on the NIC's MTU."""

    nic: str
    queue_id: Count
    min_bits_per_second: Count
    max_bits_per_second: Count
    burst_bytes: Count
    least_burst_bytes: Count = 0


class TakenOver(Frozen):
    """What a NIC held before its addresses moved to a bridge; put back when the bridge goes.

    mac: "" where an agent of an earlier version wrote this. addresses, routes: as `ip address add`
    and `ip route add` accept them. bridge: Placewire's, which took the NIC over. sysctls: the NIC's
    own, only in a debt and in a bridge's mark; Ledger.sysctls has them otherwise. given: the
    addresses that Placewire gives to the bridge, only in its mark. standing: of a NIC that was
    down, as NicFacts has it. made_promiscuous: whether ovs-vswitchd sets that flag on its port, so
    that an undo takes it off again: not on the kernel datapath, where only another program sets
    it. What is no address, and a sysctl of another interface, are refused: others can write marks.
    """

    nic: str
    addresses: tuple[str, ...]
    routes: tuple[str, ...] = ()
    was_up: bool = True
    was_promiscuous: bool = False
    # An agent of an earlier version took it off on both datapaths.
    made_promiscuous: bool = True
    bridge: str = ""
    mac: str = ""
    sysctls: tuple[Sysctl, ...] = ()
    given: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_of_one_nic(self) -> Self:
        for address in (*self.addresses, *self.given):
            ip_interface(address.partition(" ")[0])
        for sysctl in self.sysctls:
            if sysctl.interface != self.nic:
                raise ValueError(f"{sysctl.name} is no sysctl of NIC {self.nic}")
        return self


class ObservedState(Collections):
    """Placewire's entries as read back from OVSDB, OpenFlow, tc, netlink and /proc/sys.

    bridges: Placewire's in the database, and (with nic "") interfaces that the ledger names and
    that a killed ovs-vswitchd left behind. addresses: those that Placewire gave to the bridges'
    interfaces; a NIC's own are in nics, those of others in foreign. moved_addresses: IPv6 addresses
    of the bridges that were their NICs' own. sysctls: those that a desired
    state or the ledger names. bridges_down: bridges whose interface is down, as ovs-vswitchd leaves
    it when it makes the interface anew, or whose NIC somebody took off that it is promiscuous, so
    that it drops what is for the bridge, or whose flow for all packets somebody removed. unopened:
    ports of those bridges that ovs-vswitchd does not have open, as one whose NIC was made anew, or
    all while it starts. unrouted: keys of addresses whose subnet's route somebody removed.
    bridge_routes: all routes over the bridges that neither Placewire nor the kernel made, and those
    that their NICs held, as `ip route` accepts them. unused_rows: the next change removes them.
    held: what bridges' marks say that their NICs held before. addresses_elsewhere: those of
    interfaces that are neither NICs nor bridges of Placewire: the loopback's, and those of others
    in Open vSwitch. routes_elsewhere: others' routes over such interfaces, as `ip route` accepts
    them. problems: what is broken, for example a bridge of MTU above its NIC's.
    """

    nics: tuple[NicFacts, ...] = ()
    effective_queues: tuple[EffectiveQueue, ...] = ()
    foreign: tuple[ForeignEntry, ...] = ()
    bridges_down: tuple[str, ...] = ()
    unopened: tuple[UnopenedNic, ...] = ()
    unrouted: tuple[str, ...] = ()
    bridge_routes: tuple[str, ...] = ()
    unused_rows: tuple[UnusedRow, ...] = ()
    held: tuple[TakenOver, ...] = ()
    moved_addresses: tuple[Address, ...] = ()
    addresses_elsewhere: tuple[Address, ...] = ()
    routes_elsewhere: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Ledger(Frozen):
    """The agent's record of what no mark can tell. It is on disk before anything is touched.

    nics, sysctls  values of others that Placewire changes, as they were: what the state in force
                   took over, or, while a change is under way, the states before and after it
    addresses      those that Placewire gives to its bridges; any other address there is another
                   program's
    owed           debts: what NICs held that were away when it was to be given back to them
    """

    nics: tuple[TakenOver, ...] = ()
    sysctls: tuple[Sysctl, ...] = ()
    addresses: tuple[Address, ...] = ()
    owed: tuple[TakenOver, ...] = ()


class Change(Frozen):
    """before, after: the entry as JSON; before is None on add, after is None on remove."""

    action: Literal["add", "replace", "remove"]
    collection: str
    key: str
    before: str | None
    after: str | None

    @property
    def due_sentence(self) -> str:
        return f"{self.action} {self.collection} {self.key} is due"


class Refusal(Frozen):
    """what: the reason; where: server, NIC, queue or path; remedy: what to do about it."""

    what: str
    where: str
    remedy: str

    @property
    def sentence(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"


def refuse(where: str, what: str, remedy: str) -> Refusal:
    return Refusal(what=what, where=where, remedy=remedy)


LeasePhase = Literal["idle", "applying", "staged", "committed", "restoring", "failed"]


class LeaseState(Frozen):
    """The lease, on which all undoing depends.

    idle        nothing of Placewire's is in force
    applying    a change is under way; an agent that finds this on disk at its start undoes it
    staged      the generation is in force until expires_unix, then the baseline comes back
    committed   in force; expires_unix None: until the agent is told otherwise
    restoring   the baseline is being brought back
    failed      restoring failed; detail says what is left

    detail: why it is in this phase, or what an undo left otherwise than before, and when.
    generation: of the state in force. highest_generation: ever seen; a stage must be above it.
    owed: one sentence for each NIC that was away when it was to get back what it held.
    """

    phase: LeasePhase
    generation: Generation
    highest_generation: Generation = 0
    plan_name: str | None = None
    plan_digest: str | None = None
    content_digest: str | None = None
    baseline_generation: Generation | None = None
    expires_unix: ToldSeconds | None = None
    detail: str = ""
    owed: tuple[str, ...] = ()

    @property
    def is_idle(self) -> bool:
        return self.phase == "idle"

    @property
    def is_in_force(self) -> bool:
        """Whether the agent holds the server to this generation, under a lease or for good."""
        return self.phase in ("staged", "committed")

    @property
    def is_committed(self) -> bool:
        return self.phase == "committed"

    @property
    def is_kept(self) -> bool:
        """Whether the state stays in force until the agent is told otherwise."""
        return self.is_committed and self.expires_unix is None

    @property
    def is_unsettled(self) -> bool:
        """Whether a change is under way, was interrupted, or could not be undone."""
        return self.phase in ("applying", "restoring", "failed")

    @property
    def is_going_back(self) -> bool:
        """Whether the baseline is being brought back, or could not be."""
        return self.phase in ("restoring", "failed")


class DriftState(Frozen):
    """The changes of other programs to the state in force that the agent has seen since its start.

    drifts      how often it found a change; heals: how often it put changes back
    since_unix  when it first saw what differs now; None: nothing differed when it last looked
    notes       what is not put back, and why, one sentence each
    """

    policy: DriftPolicy
    drifts: Count = 0
    heals: Count = 0
    last_heal_unix: ToldSeconds | None = None
    since_unix: ToldSeconds | None = None
    notes: tuple[str, ...] = ()


class ApplyReport(Frozen):
    """succeeded: the network was read back and is as asked. wall_seconds: since the request."""

    server: str
    generation: Generation
    changes: tuple[Change, ...]
    succeeded: bool
    refusals: tuple[Refusal, ...] = ()
    wall_seconds: ToldSeconds
