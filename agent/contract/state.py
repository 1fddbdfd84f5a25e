"""What a server should be, what it is, and the difference: desired, observed, change."""

from __future__ import annotations

import hashlib
from typing import Literal

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
from placewire.agent.contract.numbers import Generation
from placewire.frozen import Frozen

DriftPolicy = Literal["heal", "report"]


class Collections(Frozen):
    """The collections that desired and observed states share."""

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
    """generation only goes up on a server; plan_digest names the decision that this is part of.

    take_over lists the NICs whose own address may move to their bridge; an address found on any
    other of our NICs is refused. drift: what becomes of what others change of it while it is in
    force: put right again, or only told.
    """

    server: str
    plan_name: str
    plan_digest: str
    generation: Generation
    take_over: tuple[str, ...] = ()
    drift: DriftPolicy = "heal"

    @property
    def content_digest(self) -> str:
        """What the state says, without its generation."""
        text = self.model_dump_json(exclude={"generation"})
        return hashlib.sha256(text.encode()).hexdigest()


class NicFacts(Frozen):
    """One NIC as found; bridge: the bridge it is a port of, ours or another's.

    addresses: its own, of global scope, IPv6 included (so that taking it over can be refused).
    address_commands: the same, as `ip address add` accepts them; "dynamic" where a lease ends.
    routes: through it, none of ours and none that the kernel adds itself, as `ip route` accepts.
    root_qdisc: kind of a queueing discipline that someone set; None: the kernel's default.
    carrier: whether the other end of the link is there; None: not known, as while the NIC is down.
    promiscuous: set so by a program, as ovs-vswitchd's userspace datapath does.
    left_by_switch: its queueing discipline is the HTB that Open vSwitch makes, and it is nobody's
    port: ovs-vswitchd leaves it where a port goes before its QoS.
    least_mtu_bytes, largest_mtu_bytes: what its driver takes; None: it does not say.
    """

    name: str
    mac: str
    mtu_bytes: int
    up: bool
    speed_bits_per_second: int | None
    driver: str | None
    rdma: bool
    addresses: tuple[str, ...]
    bridge: str | None
    address_commands: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    root_qdisc: str | None = None
    carrier: bool | None = None
    promiscuous: bool = False
    left_by_switch: bool = False
    least_mtu_bytes: int | None = None
    largest_mtu_bytes: int | None = None


class ForeignEntry(Frozen):
    """Something that is not ours inside a range that we use: a collision is refused, never fixed.

    key as our entry of that collection would have it, without what distinguishes owners.
    """

    collection: str
    key: str
    text: str


class EffectiveQueue(Frozen):
    """An HTB class as the kernel has it (tc), not as OVSDB was asked for it. least_burst_bytes:
    what Open vSwitch raises a smaller burst to, by the NIC's own MTU."""

    nic: str
    queue_id: int
    min_bits_per_second: int
    max_bits_per_second: int
    burst_bytes: int
    least_burst_bytes: int = 0


class ObservedState(Collections):
    """Our entries as read back from OVSDB, OpenFlow, tc, netlink and /proc/sys, never assumed.

    bridges holds those of the database, and interfaces that an Open vSwitch left which was killed
    (no NIC), where the ledger says that they are ours. sysctls holds those that a desired state or
    the ledger names. addresses holds those on our bridges' interfaces; a NIC's own are in nics.
    bridges_down are those of our bridges whose interface is down, as ovs-vswitchd leaves it that
    makes it anew. bridge_routes are others', over our bridges, as `ip route` accepts them.
    unused_rows go with the next change. problems lists what is ours but broken, e.g. a bridge whose
    MTU is above its NIC's.
    """

    nics: tuple[NicFacts, ...] = ()
    effective_queues: tuple[EffectiveQueue, ...] = ()
    foreign: tuple[ForeignEntry, ...] = ()
    bridges_down: tuple[str, ...] = ()
    bridge_routes: tuple[str, ...] = ()
    unused_rows: tuple[UnusedRow, ...] = ()
    problems: tuple[str, ...] = ()


class TakenOver(Frozen):
    """What a NIC held before its address moved: put back when its bridge goes."""

    nic: str
    addresses: tuple[str, ...]  # as `ip address add` accepts them
    routes: tuple[str, ...] = ()  # as `ip route` prints and accepts them
    was_up: bool = True
    was_promiscuous: bool = False
    bridge: str = ""  # of ours, that took it over


class Ledger(Frozen):
    """Foreign values that we changed, as they were before; on disk before anything is touched."""

    nics: tuple[TakenOver, ...] = ()
    sysctls: tuple[Sysctl, ...] = ()


class Change(Frozen):
    """before is None on add, after is None on remove. In JSON an entry is its plain object."""

    action: Literal["add", "replace", "remove"]
    collection: str
    key: str
    before: str | None
    after: str | None


class Refusal(Frozen):
    """What cannot be done: what, where (server, NIC, queue, path), and what to do about it."""

    what: str
    where: str
    remedy: str


LeasePhase = Literal["idle", "applying", "staged", "committed", "restoring", "failed"]


class LeaseState(Frozen):
    """The one thing that carries undoing.

    idle        nothing of ours is in force
    applying    a change is under way (found on disk after a crash: undo it)
    staged      generation is in force until expires_unix, then the baseline comes back
    committed   in force; expires_unix None means kept until told otherwise
    restoring   the baseline is being brought back
    failed      restoring failed; detail says what is left

    generation is that of what is in force; highest_generation the highest that was ever seen:
    a later stage must be above it.
    """

    phase: LeasePhase
    generation: int
    highest_generation: int = 0
    plan_name: str | None = None
    plan_digest: str | None = None
    content_digest: str | None = None
    baseline_generation: int | None = None
    expires_unix: float | None = None
    detail: str = ""

    @property
    def is_idle(self) -> bool:
        return self.phase == "idle"

    @property
    def is_in_force(self) -> bool:
        """Whether the agent holds the server to this generation, for now or for good."""
        return self.phase in ("staged", "committed")

    @property
    def is_committed(self) -> bool:
        return self.phase == "committed"

    @property
    def is_kept(self) -> bool:
        """Whether it stays in force until the agent is told otherwise."""
        return self.is_committed and self.expires_unix is None

    @property
    def is_unsettled(self) -> bool:
        """Whether a change is under way, or was interrupted, or could not be undone."""
        return self.phase in ("applying", "restoring", "failed")

    @property
    def is_going_back(self) -> bool:
        """Whether the baseline is being brought back, or could not be."""
        return self.phase in ("restoring", "failed")


class DriftState(Frozen):
    """What the agent has seen, since it started, of changes that others made to what is in force.

    drifts      how often it found something changed; heals: how often it put that right
    since_unix  when it was first seen as it is now; None: at the last look all was as wanted
    notes       what is not put right, and why, one sentence each
    """

    policy: DriftPolicy
    drifts: int = 0
    heals: int = 0
    last_heal_unix: float | None = None
    since_unix: float | None = None
    notes: tuple[str, ...] = ()


class ApplyReport(Frozen):
    """succeeded: the network was read back, and it is as the request asked.
    wall_seconds: from the request to this report."""

    server: str
    generation: int
    changes: tuple[Change, ...]
    succeeded: bool
    refusals: tuple[Refusal, ...] = ()
    wall_seconds: float
