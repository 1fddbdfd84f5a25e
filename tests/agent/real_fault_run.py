"""One change of a real server with one fault at a random step of it, from a seed, and its verdict.

The agent's daemon, its disk, Open vSwitch, the kernel and the link are real; the controller is a
process that makes the requests of one change. Meanwhile two probes send 10 packets a second each,
one over the management NIC and one over the NIC whose queues change.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from placewire.agent.contract.messages import Commit, Destroy, Stage
from placewire.agent.contract.state import Collections, DesiredState
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.effective import ineffective_queues
from placewire.frozen import Frozen
from tests.agent import keeping
from tests.agent.probe import Answered, Probe
from tests.agent.real_lab import RealLab
from tests.agent.states import desired_state

LEASE_SECONDS = 2.0
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
AT_MOST_SECONDS = 25.0
# For so long, the last request may still be under way unseen.
QUIET_SECONDS = 0.8
MANAGEMENT_ADDRESS, DATA_ADDRESS = "10.9.0.1", "10.7.0.1"


class RealFault(Enum):
    AGENT_KILLED = "agent killed (-9)"
    SWITCH_KILLED = "ovs-vswitchd killed (-9)"
    DATABASE_KILLED = "ovsdb-server killed (-9)"
    CONTROLLER_KILLED = "controller killed (-9)"
    NIC_GONE = "a NIC vanishes, comes back"
    EDITED = "others edit what is ours"
    DISK_FULL = "disk full"
    MESSAGE_LOST = "message lost"
    MESSAGE_CUT = "message cut"
    REPLY_LOST = "reply lost"
    MESSAGE_TWICE = "messages twice"


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
    """helped: it was whole only after another start of the agent. broken: what is wrong, or ""."""

    seed: int
    fault: RealFault
    ended: str
    helped: bool
    management: Answered
    data: Answered
    broken: str


class RealFaultRun:
    """Does one run after the other on one lab; each begins with what the one before left in
    force."""

    def __init__(self, lab: RealLab) -> None:
        self._lab = lab
        self._bare = _look(lab)
        self._generation = lab.kept.lease.highest_generation

    def run(self, seed: int, fault: RealFault) -> Told:
        """The seed decides what is asked for, and when the fault strikes and is repaired."""
        rng = random.Random(seed)
        old = self._lab.kept.desired
        new = self._another(rng, old)
        probes = [Probe(self._lab.server, a) for a in (MANAGEMENT_ADDRESS, DATA_ADDRESS)]
        try:
            committed = self._change(rng, fault, new)
            ended, helped, broken = self._settle([new] if committed else [old, new])
        finally:
            management, data = (probe.end() for probe in probes)
        self._generation = max(self._generation, self._lab.kept.lease.highest_generation)
        return Told(seed, fault, "new" if ended is new else "old", helped, management, data, broken)

    def _another(self, rng: random.Random, old: DesiredState | None) -> DesiredState | None:
        """None: everything of ours goes."""
        if old is not None and rng.random() < 0.3:
            return None
        contents = [c for c in _CONTENTS if old is None or _key(c) != _key(old)]
        self._generation += 1
        return rng.choice(contents).model_copy(update={"generation": self._generation})

    def _change(self, rng: random.Random, fault: RealFault, new: DesiredState | None) -> bool:
        """Asks for the change, strikes and repairs meanwhile. Returns True where the controller
        knows that the change holds."""
        trouble = _Trouble(self._lab, fault, rng)
        requests: list[Frozen] = [Destroy(plan_name=keeping.PLAN)]
        if new is not None:
            requests = [Stage(desired=new, lease_seconds=LEASE_SECONDS),
                        Commit(generation=new.generation, lease_seconds=None)]  # fmt: skip
        _until(lambda: time.monotonic() >= trouble.ask_at, trouble)
        done = all(_is_done(self._ask(request, trouble)) for request in requests)
        _until(lambda: trouble.over, trouble)
        self._lab.controller.spoil("")
        return done

    def _ask(self, request: Frozen, trouble: _Trouble) -> Any:
        """The answer; None where there is none, or where a controller got it that is gone."""
        asked = self._lab.controller
        if not asked.alive:
            return None
        identifier = asked.send(request)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            trouble.look()
            if self._lab.controller is not asked or not asked.alive:
                return None
            if (answer := asked.reply(identifier)) is not None:
                return answer
            time.sleep(0.02)
        return None

    def _settle(
        self, allowed: Sequence[DesiredState | None]
    ) -> tuple[DesiredState | None, bool, str]:
        """(the state that the server ended on, whether the agent had to be started again, what is
        wrong)"""
        wrong = self._wait_until_whole(allowed, BY_ITSELF_SECONDS)
        helped = bool(wrong)
        if helped:
            self._lab.restart_agent()
            wrong = self._wait_until_whole(allowed, AT_MOST_SECONDS)
        in_force = self._lab.kept.desired
        return next((s for s in allowed if _key(s) == _key(in_force)), None), helped, wrong

    def _wait_until_whole(self, allowed: Sequence[DesiredState | None], seconds: float) -> str:
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

    def _wrong(self, allowed: Sequence[DesiredState | None]) -> str:
        """What is wrong by the system's tools and by a reading of another process, not by the
        agent."""
        kept = self._lab.kept
        if kept.lease.phase not in ("idle", "committed"):
            return f"the lease is {kept.lease.phase}: {kept.lease.detail}"
        if _key(kept.desired) not in [_key(state) for state in allowed]:
            return f"generation {kept.lease.generation} is in force, which is neither old nor new"
        if kept.desired is None:
            left = set(_look(self._lab).splitlines()) ^ set(self._bare.splitlines())
            return f"not as it was before: {sorted(left)[:8]}" if left else ""
        try:
            observed = self._lab.server.inside(keeping.observe, self._lab.server.config).state
        except AssertionError as error:
            return f"cannot be read: {str(error)[-300:]}"
        wanted = canonical(kept.desired)
        wrong = [
            f"{name}: {set(getattr(observed, name)) ^ set(getattr(wanted, name))}"
            for name in set(Collections.model_fields) - {"sysctls"}
            if set(getattr(observed, name)) != set(getattr(wanted, name))
        ]
        wrong += [f"{row.key} is not in use" for row in observed.unused_rows]
        if not set(wanted.sysctls) <= set(observed.sysctls):
            wrong.append(f"sysctls: {observed.sysctls}")
        faults = (*observed.problems, *ineffective_queues(kept.desired, observed))
        return "; ".join([*wrong, *faults])


class _Trouble:
    """A fault that strikes once, at some time during a change, and is repaired a moment later.

    ask_at: when the change is asked for, by the monotonic clock.
    """

    def __init__(self, lab: RealLab, fault: RealFault, rng: random.Random) -> None:
        self._lab, self._fault, self._rng = lab, fault, rng
        edited = fault is RealFault.EDITED
        strike = rng.uniform(*(EDITED_WITHIN_SECONDS if edited else STRIKES_WITHIN_SECONDS))
        if fault in _OF_MESSAGES:
            strike = 0.0
        now = time.monotonic()
        self.ask_at = now + max(0.0, -strike)
        self._strike_at = now + max(0.0, strike)
        self._repair_at = self._strike_at + rng.uniform(0, REPAIR_WITHIN_SECONDS)
        self._struck = self.over = False

    def look(self) -> None:
        """To be called often."""
        if not self._struck and time.monotonic() >= self._strike_at:
            self._struck = True
            self._strike()
        if not self.over and time.monotonic() >= self._repair_at:
            self.over = True
            self._lab.repair()

    def _strike(self) -> None:
        lab = self._lab
        if self._fault in _OF_MESSAGES:
            lab.controller.spoil(_OF_MESSAGES[self._fault])
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
            RealFault.NIC_GONE: lab.take_nic_away,
            RealFault.DISK_FULL: lab.fill_disk,
        }
        strikes[self._fault]()


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


def _look(lab: RealLab) -> str:
    """What the system's tools show of a server on which nothing of ours is. Leaves out what a NIC
    that came back has anew (its peer's index, which shifts columns), and Open vSwitch's own device,
    which a killed one leaves and the next one uses again."""
    return lab.server.sh(
        "ip -br -4 address show | sed 's/@[^ ]*//' | tr -s ' '; "
        "ip -4 route show table all; ip rule show; "
        "for n in nic0 nic1; do tc qdisc show dev $n; ip link show $n | grep -o '<.*>'; done; "
        "ovs-vsctl --timeout=5 --db=unix:$OVS_RUNDIR/db.sock list-br -- list qos -- list queue; "
        "grep -H . /proc/sys/net/ipv4/conf/*/rp_filter /proc/sys/net/ipv4/conf/*/arp_* "
        "| grep -v ovs-netdev",
        check=False,
    )


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
