"""One run of the real state machine with faults, from one seed, and the laws that it must keep.

Keeper, lease, reconcile, store, service and link are real; the server, its disk, its clocks, the
controller and the way to it are in memory. `fault_run(seed)` returns what struck, how the run
ended, and which laws were broken; run it by hand to see the story of a seed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from placewire.agent.connection.controller_connection import ControllerConnection
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.messages import (
    Commit,
    Destroy,
    Observe,
    Preview,
    ReadBack,
    Renew,
    Restore,
    Stage,
)
from placewire.agent.contract.state import DesiredState, LeaseState
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import LeaseRefusedError
from placewire.agent.reconcile.validate import ServerFacts, WayToController
from placewire.agent.service import Service
from placewire.agent.store import STATE_FILE, DiskStore, StoreError
from placewire.frozen import Frozen
from tests.agent.fault_laws import (
    Decisions,
    not_whole,
    other_nics,
    unpaid,
    untold_leftovers,
)
from tests.agent.fault_leases import Leases
from tests.agent.fault_link import RepliesInMemory, gist_of, number_of, outcome_of
from tests.agent.faults import (
    CLOCK_FAULTS,
    NIC_FAULTS,
    STATE_FAULTS,
    AgentDied,
    Fault,
    Place,
    PowerCut,
    Striker,
)
from tests.agent.foreign_process import Others
from tests.agent.memory_disk import MemoryDisk
from tests.agent.memory_drivers import MemoryNetwork
from tests.agent.memory_server import MANAGEMENT, NICS, MemoryServer, base_address
from tests.agent.memory_snapshot import snapshot
from tests.agent.states import desired_state

FACTS = ServerFacts("s1", "netdev", (3, 1), frozenset({MANAGEMENT}))
WAY = WayToController(frozenset({"10.9.0.1"}))
CONFIG = AgentConfig(
    server="s1", controller_url="https://10.9.0.254:7443", certificate_file="", key_file="",
    authority_file="", state_dir="",
)  # fmt: skip
_ONE, _TWO = ("nic0",), ("nic0", "nic1")
CONTENTS = tuple(
    desired_state(1, rates, nics).model_copy(update=dict.fromkeys(without, ()))
    for nics in (_ONE, ("nic1",), _TWO)
    for rates, without in (
        ((10_000_000, 30_000_000), ()),
        ((20_000_000, 20_000_000), ("rules", "routes")),
        ((5_000_000, 40_000_000), ("flows", "sysctls")),
        ((1_000_000, 1_000_000), ("classifiers", "flows", "queues", "shapers")),
    )
)
# Longer than every lease and every pause between two attempts.
LONGEST_SETTLING_SECONDS = 20_000.0
# How long until what was fought over is put back again.
LONGEST_DRIFT_SECONDS = 4000.0
# How long the agent is watched while a NIC stays away.
AWAY_SECONDS = 1000.0
# By how much a wall clock is off that was not set yet.
CLOCK_OFF_SECONDS = (60.0, 3 * 86_400.0)
# What a lease says that failed for something which ends: others' things, and injected faults.
_PASSING = (
    "not ours", "its owner's", "injected", "no answer", "does not answer", "cannot be saved",
)  # fmt: skip
# How often, at a step, an owner uses a NIC that no state wants back.
_USED_SELDOM = 0.01
# How often the owner of an adapter that replaced a NIC uses it for something else.
_USED_OFTEN = 0.4
_AWAY_NAME, _OTHER_MAC = "away-{}", "02:00:00:00:01:{:02x}"


class Told(NamedTuple):
    seed: int
    struck: Counter[Fault]
    ended: str
    broken: tuple[str, ...]
    story: tuple[str, ...]


class _Away(NamedTuple):
    """later: whether the NIC comes back only after all has settled, so that an undo finds it away.
    owed: whether the agent had what the NIC held in its ledger, and so has to give it back. mac: of
    the NIC, which may be another one that took the first one's name before."""

    fault: Fault
    later: bool
    owed: bool
    mac: str


class FaultRun:
    def __init__(
        self, seed: int, loop: asyncio.AbstractEventLoop, kinds: Sequence[Fault] = tuple(Fault)
    ) -> None:
        self._rng = random.Random(seed)
        self._loop = loop
        self.server = MemoryServer()
        self.striker = Striker(random.Random(f"faults {seed}"), self._happen, kinds)
        self._others = Others(self._rng, self.server)
        self._before = snapshot(self.server)
        self._disk = MemoryDisk(self.striker)
        self._network = MemoryNetwork(self.server, self.striker)
        self._running_seconds = 1000.0  # the boot clock
        self._boots = 1
        self._clock_off = 1_700_000_000.0
        self._away: dict[str, _Away] = {}
        # NICs that another one replaced while our bridge was over that name.
        self._adopted: set[str] = set()
        self._replacements = 0  # Each has a MAC of its own.
        self._owed: set[str] = set()
        self._clock_wrong = 0.0
        self._leases = Leases()
        self._damaged = False  # Whether the agent's state file was.
        # Whether others may have changed the state in force since the agent last made it whole.
        self._disturbed = False
        self._decisions = Decisions()
        self._staged: dict[int, DesiredState] = {}
        self._generation = 0
        self._highest = self._highest_saved = 0
        self._messages = 0
        self._late: list[tuple[int, str, Frozen]] = []
        self._controller_lost = False
        self._stuck = False  # Whether the last attempt of the agent by itself failed.
        self._http = RepliesInMemory()
        self.keeper: Keeper | None = None
        self.broken: list[str] = []

    # -- the agent's life ------------------------------------------------------------------------

    def _start(self) -> None:
        """Starts the agent as agent/daemon.py does."""
        self.striker.agent_is_dead = False
        self._say("agent starts")
        if self._disk.is_full and self._rng.random() < 0.5:
            self._make_room()
        self._leases.agent_starts(self._running_seconds)
        self._decisions.agent_starts()
        # What could not be written was told as failed, and may be asked for again.
        self._highest = self._highest_saved
        try:
            self.keeper = Keeper(
                self._network, DiskStore(self._disk.root), FACTS, lambda: WAY,  # type: ignore[arg-type]
                self._wall_clock, 0, lambda: self._running_seconds, lambda: f"boot {self._boots}",
            )  # fmt: skip
        except (StoreError, UnicodeDecodeError) as error:
            self._break(f"the agent cannot start: {error}")
            return
        service = Service("s1", self.keeper, None)  # type: ignore[arg-type]
        self._link = ControllerConnection(CONFIG, service, None)  # type: ignore[arg-type]
        undisturbed = not self._disturbed
        self._disturbed = False
        former = self.keeper.lease
        report = self.keeper.resume()
        self._require_no_early_end(former, "resume")
        self._disturbed = self._disturbed or (report is not None and not report.succeeded)
        self._disturbed = self._disturbed or (report is None and not undisturbed)
        self._stuck = report is not None and not report.succeeded
        self._look("resume")

    def _wall_clock(self) -> float:
        return self._running_seconds + self._clock_off

    def _alive(self, what: Callable[[], object]) -> bool:
        """Does something as the agent; returns False where the agent died of it."""
        try:
            what()
        except AgentDied as death:
            self.keeper = None
            self._say(type(death).__name__)
            if isinstance(death, PowerCut):
                self._reboot()
            return False
        return True

    def _reboot(self) -> None:
        self._disk.cut_power(self._rng)
        self._network.log.cut_power(self._rng)
        self._boots += 1
        self._running_seconds, self._clock_off = 10.0, self._wall_clock() + 50
        self._leases.reboot(self._running_seconds)
        self.server.boot()
        self._others.after_a_reboot()
        self._away.clear()  # The distribution's configuration makes every NIC as it was.
        self._owed.clear()
        self._disturbed = True

    def _revive(self) -> None:
        """Starts the agent until it lives, as systemd does."""
        for _ in range(20):
            if self.keeper is not None or self.broken:
                return
            self._running_seconds += self._rng.uniform(0.1, 5)
            self._alive(self._start)

    # -- what happens beside it ------------------------------------------------------------------

    def _happen(self, fault: Fault) -> bool:
        """Makes an event happen. The agent is told of most, and finds the others later."""
        happened = self._strike(fault)
        if happened and self.keeper is not None and self._rng.random() < 0.7:
            self.keeper.notice(switch_restarted=fault is Fault.SWITCH_RESTARTS)
        return happened

    def _strike(self, fault: Fault) -> bool:
        if fault is Fault.CLOCK_SET:
            self._clock_off += self._rng.choice([-1, 1]) * self._rng.uniform(1, 7200)
            return True
        if fault is Fault.MESSAGE_MEANWHILE:
            return self._message_meanwhile()
        if fault in NIC_FAULTS:
            return self._take_away(self._rng.choice(NICS), fault)
        if fault in STATE_FAULTS:
            return self._damage(fault)
        if fault in CLOCK_FAULTS:
            lease = self.keeper.lease if self.keeper is not None else None
            if lease is None or not lease.is_in_force or lease.is_kept:
                return False  # No lease would notice.
            off = self._rng.uniform(*CLOCK_OFF_SECONDS)
            off = -off if fault is Fault.CLOCK_BEHIND else off
            self._clock_off += off
            self._clock_wrong += off
            return True
        if fault in (Fault.SWITCH_RESTARTS, Fault.SWITCH_DIES):
            if not self.server.switch_runs:
                return False
            self._others.after_the_switch()
            if fault is Fault.SWITCH_DIES:
                self.server.switch_dies()
            else:
                self.server.switch_restarts()
            self._disturbed = True
            return True
        acts = {
            Fault.OURS_EDITED: self._others.edit_ours,
            Fault.THEIRS_MADE: self._others.make_their_own,
            Fault.FOREIGN_INSIDE: self._others.make_inside,
            Fault.OWNER_USES_NIC: self._use_what_was_given_back,
        }
        if what := acts[fault]():
            self._say(f"others: {what}")
            self._disturbed = True
        return bool(what)

    def _use_what_was_given_back(self) -> str:
        """Of NICs that a state may want back; seldom, where there is none, of all that are free."""
        kept = self.keeper._memory.kept if self.keeper is not None else None
        if kept is None or not kept.lease.highest_generation:
            return ""
        now = {bridge.nic for bridge in kept.desired.bridges} if kept.desired else set()
        states = [baseline.desired for baseline in kept.baselines]
        wanted = {bridge.nic for state in states for bridge in state.bridges}
        nics = sorted(wanted - now)
        if not nics and self._rng.random() < _USED_SELDOM:
            nics = sorted(set(NICS) - now)
        return self._others.use(self._rng.choice(nics)) if nics else ""

    def _take_away(self, nic: str, fault: Fault) -> bool:
        if nic not in self.server.links:
            return False
        # A NIC that has its address just got it back, or had not yet given it away.
        unpaid_yet = base_address(nic) not in self.server.links[nic].addresses
        owed = unpaid_yet and (self._is_in_ledger(nic) or nic in self._owed)
        self._owed = self._owed | {nic} if owed else self._owed - {nic}
        mac = self.server.links[nic].mac
        self._away[nic] = _Away(fault, self._rng.random() < 0.5, owed, mac)
        self._say(f"{nic}: {fault.value}, {self._away[nic]}")
        self._others.after_the_loss_of(nic)
        if fault is Fault.NIC_RENAMED:
            self.server.nic_renamed(nic, _AWAY_NAME.format(nic))
        else:
            self.server.nic_vanishes(nic)
        self._disturbed = True
        return True

    def _is_in_ledger(self, nic: str) -> bool:
        """Whether the agent has what the NIC held, in its process or on disk."""
        kept = [self.keeper._memory.kept] if self.keeper is not None else []
        try:
            kept.append(DiskStore(self._disk.root).load())  # type: ignore[arg-type]
        except (StoreError, UnicodeDecodeError):
            return True  # It was damaged; what the former state had in its ledger counts.
        return any(nic == taken.nic for one in kept for taken in one.ledger.nics)

    def _damage(self, fault: Fault) -> bool:
        """The state file is lost or spoilt, and the agent ends."""
        rng = self._rng

        def flip(data: bytes) -> bytes:
            at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
            return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]

        change = {
            Fault.STATE_LOST: None,
            Fault.STATE_CUT: lambda data: data[: rng.randrange(len(data))],
            Fault.STATE_FLIPPED: flip,
        }[fault]
        if not self._disk.damage(f"/{STATE_FILE}", change):
            return False
        self._damaged = self._disturbed = True
        self._decisions.forget()
        self._leases.forget()
        self._highest = self._highest_saved = 0
        return True

    def _message_meanwhile(self) -> bool:
        """Renews or commits, which does not wait for a change under way."""
        if self.keeper is None or self._generation == 0:
            return False
        generation = self._generation
        renewed = 20.0 if self._rng.random() < 0.5 else None
        try:
            if renewed is not None:
                self.keeper.renew(generation, renewed)
            else:
                self.keeper.commit(generation, None)
                self._decisions.commit(generation, "done", for_good=True)
        except LeaseRefusedError:
            return True
        except EffectError:
            self._commit_was_not_saved(generation, None)
            return True
        except AgentDied:
            self._leases.granted(generation, renewed, self._running_seconds, sure=False)
            self._decisions.commit(generation, "unknown", for_good=True)
            raise
        self._leases.granted(generation, renewed, self._running_seconds, sure=self._is_durable())
        return True

    def _wait(self, seconds: float) -> None:
        until = self._running_seconds + seconds
        while self._running_seconds < until - 1e-6:
            try:
                self.striker.at(Place.WAIT, "waiting")
            except AgentDied as death:
                self.keeper = None
                if isinstance(death, PowerCut):
                    self._reboot()
                return
            if self.keeper is None:
                self._running_seconds = until
            else:
                self._alive(lambda: self._keep_lease(until))

    def _keep_lease(self, until: float) -> None:
        """Keeps the lease as agent/daemon.py does, but skips the seconds in which nothing
        changes."""
        assert self.keeper is not None
        due = self.keeper.seconds_until_due()
        left = until - self._running_seconds
        pause = left if due is None else min(max(due, 0.05), left)
        self._running_seconds += pause
        self.keeper.save_again()
        if due is not None and due <= pause:
            disturbed, self._disturbed = self._disturbed, False
            former = self.keeper.lease
            full = former.is_in_force and not former.is_kept and self._disk_fills("a lease ends")
            report = self.keeper.tick()
            self._require_no_early_end(former, "tick")
            whole = report is not None and report.succeeded
            self._disturbed = self._disturbed or (disturbed and not whole)
            self._stuck = report is not None and not report.succeeded
            self._say(f"tick: {report.refusals if report else ''}"[:300])
            self._look("tick")
            if full:
                self._after_the_full_disk()

    # -- the controller, and the way to the agent ------------------------------------------------

    def _send(self, request: Frozen) -> None:
        if self._controller_lost:
            return
        self._messages += 1
        identifier = f"m{self._messages}"
        fault = self.striker.at(Place.MESSAGE, type(request).__name__)
        if fault is Fault.CONTROLLER_LOST:
            self._controller_lost = True
        elif fault is Fault.MESSAGE_TRUNCATED:
            self._deliver(identifier, request, whole=False)
        elif fault in (Fault.MESSAGE_DELAYED, Fault.MESSAGES_REORDERED):
            longest = 1 if fault is Fault.MESSAGES_REORDERED else 6
            self._late.append((self._messages + self._rng.randint(1, longest), identifier, request))
        elif fault is not Fault.MESSAGE_DROPPED:
            self._deliver(identifier, request)
            if fault is Fault.MESSAGE_DUPLICATED:
                self._late.append((self._messages + self._rng.randint(0, 3), identifier, request))
        due = [late for late in self._late if late[0] <= self._messages]
        self._late = [late for late in self._late if late not in due]
        for _, late, former in due:
            self._deliver(late, former)

    def _deliver(self, identifier: str, request: Frozen, *, whole: bool = True) -> None:
        if self.keeper is None:
            return
        envelope = {"id": identifier, "body": request.model_dump(mode="json")}
        data = json.dumps({"envelopes": [envelope]}).encode()
        if not whole:
            data = data[: self._rng.randrange(1, len(data))]
        self._say(
            f"{identifier} {type(request).__name__} {number_of(request)} {'' if whole else 'cut'}"
        )
        undo = whole and isinstance(request, (Restore, Destroy))
        full = undo and self._disk_fills(type(request).__name__)
        known = identifier in self._link._replies
        self._http.replies.pop(identifier, None)
        self._alive(lambda: self._loop.run_until_complete(self._handle(data)))
        reply = self._http.replies.get(identifier)
        self._say(f"   {gist_of(reply)}")
        if whole and not known:
            self._note(request, reply)
        if full:
            self._after_the_full_disk()
        if self.keeper is not None:
            self._look(type(request).__name__)

    def _disk_fills(self, what: str) -> bool:
        if self.striker.at(Place.UNDO, what) is Fault.UNDO_DISK_FULL:
            self._disk.is_full = True
        return self._disk.is_full

    def _after_the_full_disk(self) -> None:
        """Often, the agent ends before there is room again."""
        if self._rng.random() < 0.6:
            self._say("the agent ends, its disk full")
            self._end_agent()

    def _make_room(self) -> None:
        self._say("the disk has room again")
        self._disk.is_full = False

    async def _handle(self, data: bytes) -> None:
        try:
            document = json.loads(data)
        except ValueError:
            return  # The link reports it, and polls again.
        self._link._take_all(self._http, document)  # type: ignore[arg-type]
        await asyncio.gather(*self._link._tasks.values())

    def _note(self, request: Frozen, reply: Any) -> None:
        outcome = outcome_of(reply)
        if "the agent failed" in str(reply):
            self._break(f"{type(request).__name__}: {reply}")
        if isinstance(request, (Stage, Renew, Commit)) and outcome != "refused":
            sure = outcome == "done" and self._is_durable()
            if isinstance(request, Stage):
                generation = request.desired.generation
                # One that was committed before keeps the lease that it had.
                sure = sure and self.keeper is not None and self.keeper.lease.phase == "staged"
            else:
                generation = request.generation
            now, seconds = self._running_seconds, request.lease_seconds
            self._leases.granted(generation, seconds, now, sure=sure)
        if isinstance(request, Commit):
            for_good = request.lease_seconds is None
            self._decisions.commit(request.generation, outcome, for_good=for_good)
            if "cannot be saved" in str(reply):
                self._commit_was_not_saved(request.generation, request.lease_seconds)
        elif isinstance(request, Restore):
            self._decisions.restore(request.generation, outcome)
        elif isinstance(request, Destroy):
            self._decisions.destroy(outcome)

    def _commit_was_not_saved(self, generation: int, lease_seconds: float | None) -> None:
        if self.keeper is None or not self.keeper._memory.unsaved:
            return
        self._say("   the disk may have it all the same")
        self._leases.granted(generation, lease_seconds, self._running_seconds, sure=False)
        if lease_seconds is None:
            self._decisions.may_be_on_disk(generation)

    def _is_durable(self) -> bool:
        """Whether an agent that starts again would know what this one knows."""
        try:
            on_disk = DiskStore(self._disk.root).load()  # type: ignore[arg-type]
        except (StoreError, UnicodeDecodeError):
            return False
        return self.keeper is not None and on_disk.lease == self.keeper.lease

    def _step(self) -> None:
        """Something that a controller does, or time passes."""
        generation = self._generation
        choices: list[tuple[int, Callable[[], None]]] = [
            (8 if self._staged else 60, lambda: self._stage(again=False)),
            (2, lambda: self._stage(again=True)),
            (9, lambda: self._send(Commit(generation=generation, lease_seconds=None))),
            (3, lambda: self._send(Commit(generation=generation, lease_seconds=40))),
            (4, lambda: self._send(Renew(generation=generation, lease_seconds=15))),
            (4, lambda: self._send(Restore(generation=generation))),
            (2, lambda: self._send(Destroy(plan_name="test-plan"))),
            (1, lambda: self._send(ReadBack(generation=generation))),
            (1, lambda: self._send(Observe())),
            (1, lambda: self._send(Preview(desired=self._a_state(generation + 1)))),
            (4, lambda: self._wait(self._rng.uniform(0.5, 8))),
            (3, lambda: self._wait(self._rng.uniform(10, 60))),
            (1, self._end_agent),
        ]
        weights = [weight for weight, _ in choices]
        self._rng.choices([act for _, act in choices], weights)[0]()

    def _end_agent(self) -> None:
        """Ends the agent between two requests, as systemd does."""
        self.keeper = None

    def _stage(self, *, again: bool) -> None:
        if not again or self._generation not in self._staged:
            known = self.keeper.lease.highest_generation if self.keeper else 0
            self._generation = max(self._generation, known) + 1
            self._staged[self._generation] = self._a_state(self._generation)
        desired = self._staged[self._generation]
        self._send(Stage(desired=desired, lease_seconds=self._rng.choice([5, 15, 30])))

    def _a_state(self, generation: int) -> DesiredState:
        name = "another" if self._rng.random() < 0.05 else "test-plan"
        drift = "report" if self._rng.random() < 0.2 else "heal"
        return self._rng.choice(CONTENTS).model_copy(
            update={"generation": generation, "plan_name": name, "drift": drift}
        )

    # -- laws ------------------------------------------------------------------------------------

    def _look(self, when: str) -> None:
        """Checks laws between two steps, while the agent lives."""
        assert self.keeper is not None
        if not self.keeper._memory.unsaved:
            self._decisions.disk_works()
        lease = self.keeper.lease
        self._say(f"   after {when}: {lease.phase} {lease.generation} of {lease.highest_generation}"
                  f" {lease.detail[:200]}")  # fmt: skip
        if lease.highest_generation < self._highest:
            self._break(f"{when}: highest generation {self._highest} became "
                        f"{lease.highest_generation}")  # fmt: skip
        self._highest = max(self._highest, lease.highest_generation)
        if not self.keeper._memory.unsaved:
            self._highest_saved = self._highest
        if late := self._leases.late(lease, self._running_seconds):
            self._break(f"{when}: {late}")
        if lease.phase in ("idle", "staged", "committed") and not self._disturbed:
            self._require_whole(f"after {when}")
        self._require_foreign(f"after {when}")

    def _require_no_early_end(self, former: LeaseState, when: str) -> None:
        assert self.keeper is not None
        now = self.keeper.lease
        if early := self._leases.early(former, now, self._running_seconds):
            self._break(f"{when}: {early}")

    def _require_whole(self, when: str) -> None:
        """Of a NIC that is away, or that another one has replaced, what is owed to it."""
        assert self.keeper is not None
        desired = self.keeper.desired
        if desired is not None and desired != self._staged.get(desired.generation):
            self._break(f"{when}: what is in force was never staged")
        stopped, self.striker.stopped = self.striker.stopped, True
        try:
            for complaint in self._not_whole(desired):
                self._break(f"{when}: {complaint}")
        finally:
            self.striker.stopped = stopped

    def _not_whole(self, desired: DesiredState | None) -> list[str]:
        assert self.keeper is not None
        others = other_nics(self.server)
        taken = {bridge.nic for bridge in desired.bridges} if desired is not None else set()
        if taken & others:
            return []  # The agent cannot make it whole, and is not asked to.
        if desired is None and self._damaged and self._leftovers():
            complaints = untold_leftovers(self.keeper, self.server)
        else:
            complaints = not_whole(self.server, desired, self._others, self._before)
        links = self.server.links
        # Another NIC that took its name while ours was in force may have got all or nothing.
        adopted = {nic for nic in self._adopted & links.keys() if links[nic].addresses}
        complaints += unpaid(self.keeper, (self._owed - adopted) & (others - taken))
        return complaints + self._given_to_others(others & links.keys() - self._adopted)

    def _leftovers(self) -> bool:
        return any(row.ours for row in self.server.bridges.values())

    def _given_to_others(self, replaced: set[str]) -> list[str]:
        """Addresses that another NIC of the same name got, though nobody configured it."""
        links = self.server.links
        held = {
            nic: [a for a in links[nic].addresses if a not in links[nic].theirs]
            for nic in replaced & self._owed
        }
        return [f"another NIC of the name {nic} got {a}" for nic, a in held.items() if a]

    def _require_foreign(self, when: str) -> None:
        for complaint in (*self._others.complaints(), *self._network.harmed):
            self._break(f"{when}: {complaint}")

    def _break(self, what: str) -> None:
        self._say(f"BROKEN {what}")
        self.broken.append(what)

    def _say(self, what: str) -> None:
        self.striker.story.append(f"{self._running_seconds:9.2f} {what}")

    # -- from beginning to end -------------------------------------------------------------------

    def run(self) -> str:
        """Returns how the run ended."""
        self._start_at_first()
        for _ in range(self._rng.randint(5, 14)):
            self._revive()
            if self.broken:
                return "broken"
            self._step()
            if self._away and self._rng.random() < 0.3:
                self._nics_back(late_ones=False)
            if self._rng.random() < 0.5:
                self._switch_back()
            if self._rng.random() < 0.3:
                self._clock_right()
            if self._disk.is_full and self._rng.random() < 0.3:
                self._make_room()
        self.striker.stopped = True
        self._say("faults stop")
        self._nics_back(late_ones=False)
        self._switch_back()
        self._clock_right()
        self._make_room()
        self._revive()
        if self._away:
            self._undo_while_away()
        self._settle()
        if not self.broken and self._disturbed:
            self._mend()
            # A failed change, which counted as rest beside a strange NIC, may have succeeded since.
            self._settle()
        if not self.broken:
            self._final()
        if self.broken:
            return "broken"
        assert self.keeper is not None
        return "nothing of ours" if self.keeper.desired is None else "a committed state"

    def _undo_while_away(self) -> None:
        """NICs come back only after the undo, with time to spare before and after."""
        if self.keeper is not None and self._rng.random() < 0.7:
            self._controller_lost = False
            desired = self.keeper.desired
            self._send(Destroy(plan_name=desired.plan_name if desired else "test-plan"))
        until = self._running_seconds + AWAY_SECONDS
        while self.keeper is not None and not self.broken and self._running_seconds < until:
            self._keep_lease(until)
            if self._stuck:
                self._others.get_out_of_the_way()
        if self.keeper is None or self.broken:
            return
        if self.keeper.desired is None:
            self._require_whole("while a NIC is away")
        self._nics_back(late_ones=True)
        self.keeper.notice()
        until = self._running_seconds + LONGEST_DRIFT_SECONDS
        while not self.broken and self._running_seconds < until:
            self._keep_lease(until)
        self._disturbed = self._disturbed and self.keeper.desired is not None

    def _clock_right(self) -> None:
        """The wall clock is set right, as by NTP."""
        if self._clock_wrong:
            self._say("the clock is set right")
            self._clock_off -= self._clock_wrong
            self._clock_wrong = 0.0

    def _start_at_first(self) -> None:
        self._alive(self._start)

    def _nics_back(self, *, late_ones: bool) -> None:
        """What a NIC held that the agent never had in its ledger, the distribution gives back; the
        rest is the agent's to give back."""
        for nic, away in list(self._away.items()):
            if away.later and not late_ones:
                continue
            del self._away[nic]
            self._say(f"{nic} is back")
            if away.fault is Fault.NIC_RENAMED:
                self.server.nic_renamed(_AWAY_NAME.format(nic), nic)
            else:
                replaced = away.fault is Fault.NIC_REPLACED
                self._replacements += replaced
                other = _OTHER_MAC.format(self._replacements)
                self.server.nic_comes_back(nic, other if replaced else away.mac)
                if replaced and self._rng.random() < _USED_OFTEN:
                    self._say(f"others: {self._others.use_another_adapter(nic)}")
                if replaced and (row := self.server.bridges.get(f"pw-{nic}")) and row.ours:
                    self._adopted.add(nic)
                if not away.owed:
                    self.server.configure(nic)
            self._disturbed = True

    def _switch_back(self) -> None:
        if not self.server.switch_runs:
            self._say("ovs-vswitchd is back")
            self._others.after_the_switch()
            self.server.switch_comes_back()
            self._disturbed = True
            if self.keeper is not None:
                self.keeper.notice(switch_restarted=True)

    def _settle(self) -> None:
        """Lets time pass until all leases have run out. What others put on ours is taken off once
        the agent names it."""
        until = self._running_seconds + LONGEST_SETTLING_SECONDS
        while self.keeper is not None and not self.broken and self._running_seconds < until:
            if self._is_at_rest():
                return
            self._keep_lease(until)
            if self._stuck:
                self._require_foreign("while stuck")
                self._others.get_out_of_the_way()
        if not self.broken:
            self._break("it never came to rest")

    def _is_at_rest(self) -> bool:
        """Whether no lease has anything to come, and what a start or a failed change left is made
        whole; or whether what is left is drift that is only reported."""
        assert self.keeper is not None
        lease, drift = self.keeper.lease, self.keeper.drift
        reported = drift.policy == "report" and drift.since_unix is not None
        if other_nics(self.server):  # What is owed to a NIC that never comes back stays a debt.
            reported = True
            if lease.phase == "failed":
                return not any(words in lease.detail for words in _PASSING)
        return lease.phase == "idle" or (
            lease.phase == "committed"
            and lease.expires_unix is None
            and (not self._stuck or reported)
        )

    def _mend(self) -> None:
        """What others changed while it was in force comes back: by itself, or at the next start of
        the agent where drift is only reported."""
        assert self.keeper is not None
        if self.keeper.drift.policy == "report":
            self._keep_lease(self._running_seconds + LONGEST_DRIFT_SECONDS)
            self._start_anew()
            if self._stuck and not self.broken:
                # What of others a start finds in the place of ours makes drift from then on, which
                # stays when that is gone.
                self._require_foreign("while stuck")
                self._others.get_out_of_the_way()
                self._start_anew()
            return
        until = self._running_seconds + LONGEST_DRIFT_SECONDS
        while self._disturbed and not self.broken and self._running_seconds < until:
            if self.keeper is None:
                self._revive()
            self._keep_lease(until)
            if self._stuck:
                self._require_foreign("while stuck")
                self._others.get_out_of_the_way()

    def _start_anew(self) -> None:
        self._end_agent()
        self._revive()
        self._settle()

    def _final(self) -> None:
        assert self.keeper is not None
        lease = self.keeper.lease
        replaced = self._owed & other_nics(self.server)
        if lease.phase not in ("idle", "committed") and not replaced:
            self._break(f"the lease ends {lease.phase}: {lease.detail}")
        if lease.generation not in self._decisions.possible:
            self._break(f"generation {lease.generation} is in force, decided was "
                        f"{sorted(self._decisions.possible)}")  # fmt: skip
        self._require_whole("at the end")
        self._require_foreign("at the end")


def fault_run(
    seed: int, loop: asyncio.AbstractEventLoop, kinds: Sequence[Fault] = tuple(Fault)
) -> Told:
    """loop: has an InlineExecutor. kinds: of faults. To be called within store_on_memory_disks."""
    run = FaultRun(seed, loop, kinds)
    try:
        ended = run.run()
    except Exception as error:
        run.striker.story.append(f"BROKEN {type(error).__name__}: {error}")
        run.broken.append(f"{type(error).__name__}: {error}")
        raise RuntimeError("\n".join(run.striker.story)) from error
    return Told(seed, run.striker.struck, ended, tuple(run.broken), tuple(run.striker.story))
