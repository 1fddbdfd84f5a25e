"""One change of a real server with one fault at a random step of it, from a seed, and its verdict.

The agent's daemon, its disk, Open vSwitch, the kernel and the link are real; the controller is a
process that makes the requests of one change. Meanwhile two probes send 10 packets a second each,
one over the management NIC and one over the NIC whose queues change.

The oracle is the judge, which shares no code with the agent: a snapshot of the server before
anything of ours, and one of each state while nothing struck, are what a snapshot at the end must be
equal to. Nothing is given back that the agent should give back. A NIC that stays away across an
undo is a debt: it must stay in the ledger and be told, and be paid when that NIC is back.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from placewire.agent.contract.messages import Commit, Destroy, Observe, Stage
from placewire.agent.contract.state import DesiredState
from placewire.frozen import Frozen
from placewire.oracle.differences import differences
from placewire.oracle.snapshot import UnreadableError
from tests.agent import keeping
from tests.agent.probe import Answered, Probe
from tests.agent.real_foreign import TheirsInside
from tests.agent.real_lab import RealLab, flip_one_bit
from tests.agent.real_nics import NIC, Loss
from tests.agent.states import desired_state

LEASE_SECONDS = 2.0
# A lease that a clock ahead must not end: for so long, it is looked at whether it holds.
LONG_LEASE_SECONDS = 10.0
HOLDS_SECONDS = 6.0
CLOCK_OFF_SECONDS = 86_400.0
# How long the controller waits for one answer before it gives the change up.
PATIENCE_SECONDS = 2.0
# A fault strikes within this time from the first request, about as long as a change takes. Edits by
# others strike also before it, when the last edit may not have been healed yet, and after it.
STRIKES_WITHIN_SECONDS = (0.0, 0.8)
EDITED_WITHIN_SECONDS = (-0.8, 2.4)
REPAIR_WITHIN_SECONDS = 0.5
# How long the server may take to be whole by itself (the agent tries again after 5 s), and after
# another start of the agent.
BY_ITSELF_SECONDS = 9.0
AT_MOST_SECONDS = 60.0
# How long the judge waits for an answer of an agent that nothing strikes.
TOLD_WITHIN_SECONDS = 60.0
# For so long, the last request may still be under way unseen.
QUIET_SECONDS = 0.8
MANAGEMENT_ADDRESS, DATA_ADDRESS = "10.9.0.1", "10.7.0.1"


class RealFault(Enum):
    AGENT_KILLED = "agent killed (-9)"
    SWITCH_KILLED = "ovs-vswitchd killed (-9)"
    DATABASE_KILLED = "ovsdb-server killed (-9)"
    CONTROLLER_KILLED = "controller killed (-9)"
    NIC_GONE = "NIC deleted, made anew"
    NIC_MOVED = "NIC moved away, and back"
    NIC_RENAMED = "NIC renamed, and back"
    NIC_REPLACED = "NIC made anew, another MAC"
    EDITED = "others edit what is ours"
    FOREIGN_INSIDE = "others' inside ours"
    DISK_FULL = "disk full"
    UNDO_DISK_FULL = "disk full while undoing"
    STATE_LOST = "state file lost"
    STATE_CUT = "state file cut"
    STATE_FLIPPED = "state file, one bit flipped"
    CLOCK_BEHIND = "clock behind at start"
    CLOCK_AHEAD = "clock ahead at start"
    MESSAGE_LOST = "message lost"
    MESSAGE_CUT = "message cut"
    REPLY_LOST = "reply lost"
    MESSAGE_TWICE = "messages twice"


_LOSSES: Mapping[RealFault, Loss] = {
    RealFault.NIC_GONE: Loss.DELETED,
    RealFault.NIC_MOVED: Loss.MOVED,
    RealFault.NIC_RENAMED: Loss.RENAMED,
    RealFault.NIC_REPLACED: Loss.REPLACED,
}
_OF_STATE = (RealFault.STATE_LOST, RealFault.STATE_CUT, RealFault.STATE_FLIPPED)
_CLOCKS = {
    RealFault.CLOCK_BEHIND: -CLOCK_OFF_SECONDS,
    RealFault.CLOCK_AHEAD: CLOCK_OFF_SECONDS,
}


# Edits by others, each one command; where the object does not exist, nothing happens.
EDITS = (
    "tc qdisc del dev nic0 root",
    "tc class change dev nic0 parent 1:fffe classid 1:3 htb rate 1mbit ceil 1mbit",
    "tc filter del dev nic0 parent 1: prio 20481",
    "ip rule del priority 18000",
    "ip route flush table 8001",
    "ovs-ofctl del-flows unix:$OVS_RUNDIR/pw-nic0.mgmt ip",
    "ip address flush dev pw-nic1",
    "ovs-vsctl --timeout=5 --db=unix:$OVS_RUNDIR/db.sock del-br pw-nic1",
    "sysctl -n net.ipv4.conf.nic0.arp_ignore | grep -qx 1 && "
    "sysctl -qw net.ipv4.conf.nic0.arp_ignore=2",
)
_CONTENTS = tuple(
    desired_state(1, rates, nics)
    for nics in (("nic0",), ("nic0", "nic1"))
    for rates in ((10_000_000, 30_000_000), (20_000_000, 20_000_000))
)


class Told(NamedTuple):
    """helped: it was whole only after another start of the agent. broken: what is wrong, or "".
    spent: whether the lab cannot be used again, since what is left is told and is a person's to
    decide."""

    seed: int
    fault: RealFault
    ended: str
    helped: bool
    management: Answered
    data: Answered
    broken: str
    spent: bool = False


States = Sequence[DesiredState | None]


class RealFaultRun:
    """Does one run after the other on one lab; each begins with what the one before left in
    force."""

    def __init__(self, lab: RealLab) -> None:
        self._lab = lab
        self._theirs = TheirsInside(lab.server)
        self._bare = lab.snapshot()
        self._generation = lab.kept.lease.highest_generation
        # What a server is with each state in force, by the state's key, while nothing strikes.
        self._calm = {_key(content): self._snapshot_of(content) for content in _CONTENTS}
        self._spent = False
        lab.ask(Destroy(plan_name=keeping.PLAN))

    def _snapshot_of(self, content: DesiredState) -> dict[str, Any]:
        self._generation += 1
        desired = content.model_copy(update={"generation": self._generation})
        for request in (
            Stage(desired=desired, lease_seconds=30),
            Commit(generation=desired.generation, lease_seconds=None),
        ):
            answer = self._lab.ask(request)
            assert _is_done(answer), answer
        return self._lab.snapshot()

    def run(self, seed: int, fault: RealFault) -> Told:
        """The seed decides what is asked for, and when the fault strikes and is repaired."""
        rng = random.Random(seed)
        old = self._lab.kept.desired
        new = self._another(rng, old, fault)
        probes = [Probe(self._lab.server, a) for a in (MANAGEMENT_ADDRESS, DATA_ADDRESS)]
        try:
            ended, helped, broken = self._judged(rng, fault, old, new)
        finally:
            management, data = (probe.end() for probe in probes)
        if not broken:
            self._generation = max(self._generation, self._lab.kept.lease.highest_generation)
        told = "new" if ended is new else "old"
        return Told(seed, fault, told, helped, management, data, broken, self._spent)

    def _another(
        self, rng: random.Random, old: DesiredState | None, fault: RealFault
    ) -> DesiredState | None:
        """None: everything of ours goes. Some faults are about undoing, and some about a lease."""
        goes = 1.0 if fault is RealFault.UNDO_DISK_FULL else 0.6 if fault in _LOSSES else 0.3
        goes = 0.5 if fault is RealFault.FOREIGN_INSIDE else 0.0 if fault in _CLOCKS else goes
        if old is not None and rng.random() < goes:
            return None
        contents = [c for c in _CONTENTS if old is None or _key(c) != _key(old)]
        self._generation += 1
        return rng.choice(contents).model_copy(update={"generation": self._generation})

    def _judged(
        self, rng: random.Random, fault: RealFault, old: DesiredState | None,
        new: DesiredState | None,
    ) -> tuple[DesiredState | None, bool, str]:  # fmt: skip
        """(the state that the server ended on, whether the agent had to be started again, what is
        wrong)"""
        if fault in _CLOCKS:
            assert new is not None
            return self._with_a_wrong_clock(fault, old, new)
        committed, trouble = self._change(rng, fault, new)
        allowed: States = [new] if committed else [old, new]
        if fault in _OF_STATE:
            allowed = [old, new, None, *_CONTENTS]  # An older copy of the agent's memory may count.
        if trouble.is_late:
            allowed, wrong = self._undone_while_away(rng, allowed)
            self._lab.nic.bring_back()
            if wrong:
                return None, False, wrong
        wrong = self._foreign_touched()
        ended, helped, unsettled = self._settle(allowed)
        return ended, helped, wrong or unsettled

    # -- the change, and what strikes ------------------------------------------------------------

    def _change(
        self, rng: random.Random, fault: RealFault, new: DesiredState | None
    ) -> tuple[bool, _Trouble]:
        """Asks for the change, strikes and repairs meanwhile. The flag: whether the controller
        knows that the change holds."""
        trouble = _Trouble(self._lab, self._theirs, fault, rng)
        requests: list[Frozen] = [Destroy(plan_name=keeping.PLAN)]
        if new is not None:
            requests = [Stage(desired=new, lease_seconds=LEASE_SECONDS),
                        Commit(generation=new.generation, lease_seconds=None)]  # fmt: skip
        _until(lambda: time.monotonic() >= trouble.ask_at, trouble)
        done = all(_is_done(self._ask(request, trouble)) for request in requests)
        if fault is RealFault.UNDO_DISK_FULL:
            self._lab.kill_agent()
            trouble.repair_now()  # There was no room until here.
        _until(lambda: trouble.over, trouble)
        self._lab.controller.spoil("")
        return done, trouble

    def _ask(
        self, request: Frozen, trouble: _Trouble | None = None, seconds: float = PATIENCE_SECONDS
    ) -> Any:
        """The answer; None where there is none, or where a controller got it that is gone. A
        request that no agent has taken by then is withdrawn."""
        asked = self._lab.controller
        if not asked.alive:
            return None
        identifier = asked.send(request)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if trouble is not None:
                trouble.look()
            if self._lab.controller is not asked or not asked.alive:
                return None
            if (answer := asked.reply(identifier)) is not None:
                return answer
            time.sleep(0.02)
        asked.withdraw(identifier)
        return None

    def _with_a_wrong_clock(
        self, fault: RealFault, old: DesiredState | None, new: DesiredState
    ) -> tuple[DesiredState | None, bool, str]:
        """A lease that runs while the agent starts by a clock that is a day behind or ahead: it
        ends when its time is over, and no sooner."""
        lab, wrong = self._lab, ""
        ahead = fault is RealFault.CLOCK_AHEAD
        lease_seconds = LONG_LEASE_SECONDS if ahead else LEASE_SECONDS
        asked_at = time.monotonic()
        staged = self._ask(Stage(desired=new, lease_seconds=lease_seconds))
        until = time.monotonic() + HOLDS_SECONDS
        lab.kill_agent()
        lab.clock_off_seconds = _CLOCKS[fault]
        lab.repair_daemons()
        while ahead and _is_done(staged) and not wrong and time.monotonic() < until:
            ended = lab.kept.lease.generation != new.generation
            # Where this process was held up, the lease may be over by now.
            if ended and time.monotonic() < asked_at + lease_seconds:
                wrong = f"a lease of {lease_seconds:g} s ended too early"
            time.sleep(0.2)
        state, helped, unsettled = self._settle([old])
        lab.clock_off_seconds = 0.0
        lab.restart_agent()
        return state, helped, wrong or unsettled

    def _undone_while_away(self, rng: random.Random, allowed: States) -> tuple[States, str]:
        """(the states that are right once the NIC is back, what is wrong while it is away)"""
        if rng.random() < 0.7:
            done = _is_done(self._ask(Destroy(plan_name=keeping.PLAN)))
            allowed = [None] if done else [*allowed, None]
        time.sleep(BY_ITSELF_SECONDS)
        return allowed, self._forgotten()

    # -- the verdict -----------------------------------------------------------------------------

    def _forgotten(self) -> str:
        """What is wrong with the debt to the NIC, which is away or replaced: where nothing of ours
        is in force, it is in the ledger, and told."""
        kept = self._lab.kept
        if not self._lab.nic.is_owed or kept.desired is not None:
            return ""
        if not self._lab.nic.is_in_ledger():
            return f"a debt is forgotten: what {NIC} had is in no ledger"
        if NIC not in self._told():
            return f"a debt is not told: what {NIC} had"
        return ""

    def _told(self) -> str:
        """All that the agent tells of its state, but for the network as it reads it."""
        answer = self._ask(Observe(), seconds=TOLD_WITHIN_SECONDS) or {}
        result = {k: v for k, v in (answer.get("result") or {}).items() if k != "state"}
        return json.dumps(result)

    def _foreign_touched(self) -> str:
        """Then the operator takes their things away: the agent may have named them."""
        if not self._theirs.made:
            return ""
        time.sleep(QUIET_SECONDS)
        touched = self._theirs.touched()
        self._theirs.remove()
        return "; ".join(touched)

    def _settle(self, allowed: States) -> tuple[DesiredState | None, bool, str]:
        # An agent that answers has nothing under way of what it was asked before.
        self._ask(Observe(), seconds=BY_ITSELF_SECONDS)
        wrong = self._wait_until_whole(allowed, BY_ITSELF_SECONDS)
        helped = bool(wrong)
        if helped:
            self._lab.restart_agent()
            wrong = self._wait_until_whole(allowed, AT_MOST_SECONDS)
        if wrong:
            return None, helped, wrong
        in_force = self._lab.kept.desired
        return next((s for s in allowed if _key(s) == _key(in_force)), None), helped, ""

    def _wait_until_whole(self, allowed: States, seconds: float) -> str:
        """Returns "" where the server was whole, and still was a moment later; else what is
        wrong."""
        deadline = time.monotonic() + seconds
        wrong = "not looked"
        while wrong and time.monotonic() < deadline:
            if not (wrong := self._wrong(allowed)):
                time.sleep(QUIET_SECONDS)
                wrong = self._wrong(allowed)
            time.sleep(0.2 if wrong else 0)
        return wrong

    def _wrong(self, allowed: States) -> str:
        """What is wrong by the oracle, which is another program and shares no code with the
        agent."""
        try:
            kept = self._lab.kept
            now = self._lab.snapshot()
        except (UnreadableError, ValueError, OSError) as error:
            return f"cannot be read: {error}"
        replaced = self._lab.nic.is_replaced
        if kept.lease.phase not in ("idle", "committed") and not replaced:
            return f"the lease is {kept.lease.phase}: {kept.lease.detail}"
        if _key(kept.desired) not in [_key(state) for state in allowed]:
            return f"generation {kept.lease.generation} is in force, which is neither old nor new"
        before = self._bare if kept.desired is None else self._calm[_key(kept.desired)]
        left = self._theirs.without(differences(before, now))
        if replaced:
            return self._wrong_of_another_nic(left)
        if left and kept.desired is None and self._leftovers_are_told(now):
            self._spent = True
            return ""
        return f"not as it was before: {left[:8]}" if left else ""

    def _wrong_of_another_nic(self, left: Sequence[str]) -> str:
        """Another NIC of the same name gets nothing of what the former had, and the debt to the
        former is told. One that got into our bridge while the state was in force counts as the NIC,
        and may have all of it. Everything else is as before."""
        self._spent = True
        if self._lab.kept.desired is not None:
            return ""  # Whether ours goes on over another NIC is not judged here.
        rest = [line for line in left if NIC not in line and "10.7.1." not in line]
        got = [a for a in self._lab.nic.addresses() if self._lab.nic.is_owed]
        if got and self._lab.nic.may_be_adopted:
            return "; ".join(f"not as it was before: {line}" for line in rest)
        return "; ".join(
            [*(f"not as it was before: {line}" for line in rest),
             *(f"another NIC of the name {NIC} got {a}" for a in got),
             *filter(None, [self._forgotten()])]
        )  # fmt: skip

    def _leftovers_are_told(self, now: Mapping[str, Any]) -> bool:
        """Whether the agent names each bridge that carries our mark and that no ledger has."""
        ours = [name for name in now["facts"]["bridge"] if name.startswith("pw-")]
        return bool(ours) and all(name in self._told() for name in ours)


class _Trouble:
    """A fault that strikes once, at some time during a change, and is repaired a moment later.

    ask_at: when the change is asked for, by the monotonic clock. is_late: whether a NIC stays away
    beyond the repair, until an undo has found it away.
    """

    def __init__(
        self, lab: RealLab, theirs: TheirsInside, fault: RealFault, rng: random.Random
    ) -> None:
        self._lab, self._theirs, self._fault, self._rng = lab, theirs, fault, rng
        edited = fault is RealFault.EDITED
        strike = rng.uniform(*(EDITED_WITHIN_SECONDS if edited else STRIKES_WITHIN_SECONDS))
        if fault in _OF_MESSAGES:
            strike = 0.0
        if fault in (RealFault.FOREIGN_INSIDE, RealFault.UNDO_DISK_FULL):
            strike = -0.3
        self.is_late = fault in _LOSSES and rng.random() < 0.5
        now = time.monotonic()
        self.ask_at = now + max(0.0, -strike)
        self._strike_at = now + max(0.0, strike)
        self._repair_at = self._strike_at + rng.uniform(0, REPAIR_WITHIN_SECONDS)
        if fault is RealFault.UNDO_DISK_FULL:
            self._repair_at = math.inf
        self._struck = self.over = False

    def look(self) -> None:
        """To be called often."""
        if not self._struck and time.monotonic() >= self._strike_at:
            self._struck = True
            self._strike()
        if not self.over and time.monotonic() >= self._repair_at:
            self.over = True
            if self.is_late:
                self._lab.repair_daemons()
            else:
                self._lab.repair()

    def repair_now(self) -> None:
        self._repair_at = 0.0
        self.look()

    def _strike(self) -> None:
        lab = self._lab
        if self._fault in _OF_MESSAGES:
            lab.controller.spoil(_OF_MESSAGES[self._fault])
            return
        if self._fault in _LOSSES:
            lab.nic.take_away(_LOSSES[self._fault])
            return
        if self._fault is RealFault.EDITED:
            for edit in self._rng.sample(EDITS, 3):
                lab.server.sh(edit, check=False)
            return
        strikes: Mapping[RealFault, Callable[[], None]] = {
            RealFault.AGENT_KILLED: lab.kill_agent,
            RealFault.SWITCH_KILLED: lab.kill_switch,
            RealFault.DATABASE_KILLED: lab.kill_database,
            RealFault.CONTROLLER_KILLED: lab.controller.kill,
            RealFault.DISK_FULL: lab.fill_disk,
            RealFault.UNDO_DISK_FULL: lab.fill_disk,
            RealFault.FOREIGN_INSIDE: lambda: self._theirs.make(self._rng),
            RealFault.STATE_LOST: lambda: lab.damage_state(None),
            RealFault.STATE_CUT: lambda: lab.damage_state(self._cut),
            RealFault.STATE_FLIPPED: lambda: lab.damage_state(flip_one_bit(self._rng)),
        }
        strikes[self._fault]()

    def _cut(self, data: bytes) -> bytes:
        return data[: self._rng.randrange(len(data))]


def _until(reached: Callable[[], bool], trouble: _Trouble) -> None:
    while not reached():
        trouble.look()
        time.sleep(0.02)


_OF_MESSAGES: Mapping[RealFault, str] = {
    RealFault.MESSAGE_LOST: "lost",
    RealFault.MESSAGE_CUT: "cut",
    RealFault.REPLY_LOST: "reply lost",
    RealFault.MESSAGE_TWICE: "twice",
}


def _is_done(answer: Any) -> bool:
    result = (answer or {}).get("result") or {}
    return bool(result.get("succeeded")) or result.get("phase") == "committed"


def _key(state: DesiredState | None) -> str:
    return "" if state is None else state.content_digest


def table(told: Sequence[Told]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, one row per fault): how runs ended, and what the probes lost."""
    columns = ("fault", "runs", "old", "new", "broken", "next start", "management", "data", "gap")
    rows = []
    for fault in RealFault:
        runs = [run for run in told if run.fault is fault]
        ends = Counter("broken" if run.broken else run.ended for run in runs)
        most = max((run.data.lost for run in runs), default=0)
        rows.append((
            fault.value, str(len(runs)), *(str(ends[end]) for end in ("old", "new", "broken")),
            str(sum(run.helped for run in runs)),
            f"{sum(r.management.lost for r in runs)} of {sum(r.management.sent for r in runs)}",
            f"{most}", f"{max((run.data.gap_seconds for run in runs), default=0.0):.1f} s",
        ))  # fmt: skip
    return columns, rows
