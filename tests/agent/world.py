"""The world of a keeper under test: a network of entries by key, a disk, a clock that tests
turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placewire.agent.contract.entries import COLLECTIONS
from placewire.agent.contract.state import (
    DesiredState,
    DriftPolicy,
    EffectiveQueue,
    ForeignEntry,
    NicFacts,
    ObservedState,
    TakenOver,
    UnopenedNic,
)
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.effects import EffectError, UnreadableError
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step
from placewire.agent.reconcile.unmarkable import Unmarked
from placewire.agent.reconcile.validate import ServerFacts, WayToController
from placewire.agent.store import DiskStore
from tests.agent.states import desired_state

BARE = (
    NicFacts(
        name="nic0", mac="02:00:00:00:00:01", mtu_bytes=1500, up=True, speed_bits_per_second=None,
        driver="veth", rdma=False, addresses=("10.7.0.1/24",), bridge=None,
        address_commands=("10.7.0.1/24 scope 0 label nic0",),
    ),
)  # fmt: skip


class Crash(BaseException):
    """The agent's process is gone."""


class FakeNetwork:
    """Holds entries by key; can fail or crash before the n-th step of an apply."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Any] = {}
        self.marks: dict[str, TakenOver] = {}
        self.nics = BARE
        self.sysctls = {"net.ipv4.conf.nic0.rp_filter": "0"}
        self.fail_after: int | None = None
        self.crash_after: int | None = None
        self.unreadable = False
        self.foreign: tuple[ForeignEntry, ...] = ()
        self.unopened: tuple[UnopenedNic, ...] = ()
        self.touched = 0

    def observe(self, sought: Unmarked) -> ObservedState:
        if self.unreadable:
            raise UnreadableError("the database does not answer")
        found = {
            kind.collection: tuple(
                entry for (name, _), entry in self.entries.items() if name == kind.collection
            )
            for kind in COLLECTIONS
        }
        found["sysctls"] = tuple(
            {"name": n, "value": v} for n, v in self.sysctls.items() if n in sought.sysctls
        )
        effective = tuple(
            EffectiveQueue(
                nic=q.nic, queue_id=q.queue_id, min_bits_per_second=q.min_bits_per_second,
                max_bits_per_second=q.max_bits_per_second, burst_bytes=q.burst_bits // 8,
            )
            for q in found["queues"]
        )  # fmt: skip
        held = tuple(self.marks[b.name] for b in found["bridges"] if b.name in self.marks)
        return ObservedState(
            **found, nics=self.nics, effective_queues=effective, foreign=self.foreign, held=held,
            unopened=self.unopened,
        )  # fmt: skip

    def apply(self, steps: Sequence[Step], plan_name: str) -> None:
        for number, step in enumerate(steps):
            if self.fail_after == number:
                raise EffectError("no such device")
            if self.crash_after == number:
                raise Crash
            self.touched += 1
            self._apply(step)

    def make_durable(self) -> None:
        pass

    def _apply(self, step: Step) -> None:
        if isinstance(step, NicStep):
            away = {"addresses": (), "address_commands": ()}
            self.nics = (
                (BARE[0].model_copy(update=away),) if step.direction == "to bridge" else BARE
            )
        elif step.collection == "sysctls":
            assert isinstance(step, EntryStep) and step.after is not None
            self.sysctls[step.entry.key] = step.after.value  # type: ignore[union-attr]
        elif step.after is None:
            del self.entries[step.collection, step.entry.key]
        else:
            self.entries[step.collection, step.entry.key] = step.after
            if step.unopened:
                self.unopened = ()
            if step.mark is not None:
                self.marks[step.entry.key] = step.mark

    @property
    def state(self) -> tuple[object, ...]:
        return (dict(self.entries), self.nics, dict(self.sysctls))


class World:
    """One server, whose network, disk and clock outlive the keepers (agent processes)."""

    def __init__(self, directory: Path) -> None:
        self.network = FakeNetwork()
        self.store = DiskStore(directory)
        self.now = 1000.0
        self.clock_off = 0.0
        self.boot_id = "boot 1"
        self.directory = directory

    def keeper(self) -> Keeper:
        facts = ServerFacts("s1", "netdev", (3, 1), frozenset({"mgmt"}))
        way = WayToController(frozenset({"10.9.0.1"}))

        return Keeper(
            self.network, self.store, facts, lambda: way, lambda: self.now + self.clock_off, 0,
            lambda: self.now, lambda: self.boot_id,
        )  # fmt: skip


def plan(generation: int, **changes: Any) -> DesiredState:
    """A state of one NIC, without what the fake network would have to invent (sysctls of the
    bridge)."""
    state = desired_state(generation, nics=("nic0",))
    sysctls = tuple(s for s in state.sysctls if s.name.endswith(".rp_filter"))
    return state.model_copy(update={"sysctls": sysctls, **changes})


def in_force(world: World, drift: DriftPolicy = "heal") -> Keeper:
    keeper = world.keeper()
    assert keeper.stage(plan(1, drift=drift), 60).succeeded
    keeper.commit(1, None)
    world.network.touched = 0
    return keeper


def tick(world: World, keeper: Keeper, seconds: float = 0.0) -> Any:
    """Lets time pass; the daemon wakes up where something is due."""
    world.now += seconds
    due = keeper.seconds_until_due()
    assert due is not None
    return keeper.tick() if due <= 0 else None
