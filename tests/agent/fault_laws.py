"""The laws that must hold of a server at the end of a run with faults: which decisions may be in
force, and what a whole state is. They do not use the state machine of agent/reconcile.

Where nothing of ours is in force, the oracle compares the server with what it was before. Nothing
is given back on the agent's behalf: what a NIC held when the agent's ledger had it is the agent's
to give back, also where the NIC was away at the undo. It is a debt then: it stays in the ledger, is
told, and is paid when the NIC of this name and MAC is back.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Literal

from placewire.agent.contract.state import Collections, DesiredState
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.effective import ineffective_queues
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.unmarkable import Unmarked
from placewire.oracle.differences import differences
from tests.agent.foreign_process import Others
from tests.agent.memory_server import (
    NICS,
    MemoryServer,
    base_addresses,
    base_routes,
    mac,
    sysctls_of,
)
from tests.agent.memory_snapshot import snapshot

Outcome = Literal["done", "refused", "unknown"]


class Decisions:
    """Which generations (0: nothing of ours) may be in force once all leases have run out, by the
    decisions that reached the agent. `unknown`: nobody heard the outcome, so both are right. A
    commit that was refused is none of them, unless the agent ended before its disk, which may have
    it, worked again."""

    def __init__(self) -> None:
        self.possible = frozenset({0})
        self._ever = frozenset({0})
        self._beneath: dict[int, frozenset[int]] = {}
        self._maybe_on_disk: frozenset[int] = frozenset()

    def commit(self, generation: int, outcome: Outcome, *, for_good: bool) -> None:
        if outcome == "refused" or not for_good:
            return
        self._beneath.setdefault(generation, self.possible - {generation})
        certain = frozenset() if outcome == "done" else self.possible
        self.possible = certain | {generation}
        self._ever |= {generation}

    def restore(self, generation: int, outcome: Outcome) -> None:
        if outcome == "refused" or generation not in self.possible:
            return
        left = self.possible - {generation} if outcome == "done" else self.possible
        self.possible = left | self._beneath.get(generation, frozenset({0}))

    def destroy(self, outcome: Outcome) -> None:
        if outcome != "refused":
            left = frozenset() if outcome == "done" else self.possible
            self.possible = left | {0}

    def may_be_on_disk(self, generation: int) -> None:
        """A commit was refused, and the disk could not be brought back to what was before it."""
        self._maybe_on_disk |= {generation}

    def disk_works(self) -> None:
        """The agent has written what it remembers."""
        self._maybe_on_disk = frozenset()

    def agent_starts(self) -> None:
        """What is on disk counts."""
        for generation in self._maybe_on_disk:
            self.commit(generation, "unknown", for_good=True)
        self.disk_works()

    def forget(self) -> None:
        """The agent's memory was damaged: whatever it once had for good may be in force."""
        self.possible = self._ever


def told_by(keeper: Keeper) -> str:
    """All that the agent tells people of its state, but for the network as it reads it."""
    told: list[Any] = [keeper.lease.model_dump(), keeper.drift.model_dump()]
    with suppress(EffectError):  # The switch does not run.
        told.append(keeper.observe().model_dump(exclude={"state"}))
    return json.dumps(told, default=str)


def unpaid(keeper: Keeper, nics: Collection[str]) -> list[str]:
    """What is wrong with the debts to these NICs, which are away or replaced."""
    ledger, told = keeper._memory.kept.ledger.model_dump_json(), told_by(keeper)
    wrong = []
    for nic in sorted(nics):
        if f'"{nic}"' not in ledger:
            wrong.append(f"a debt is forgotten: what {nic} had is in no ledger")
        elif nic not in told:
            wrong.append(f"a debt is not told: what {nic} had")
    return wrong


def untold_leftovers(keeper: Keeper, server: MemoryServer) -> list[str]:
    """Bridges of ours of which the agent, whose memory was damaged, says nothing."""
    told = told_by(keeper)
    ours = [row.name for row in server.bridges.values() if row.ours]
    return [f"{name} carries our mark, and nobody is told" for name in ours if name not in told]


def bare(server: MemoryServer, before: Mapping[str, Any], others: Others) -> list[str]:
    """What differs from `before`, by the oracle, but for NICs that are away or another now."""
    changed = others.edited_sysctls | other_nics(server)
    names = {n for nic in changed for n in (nic, *sysctls_of(nic))}
    known = {"version": before["version"], "facts": _without(before["facts"], changed | names)}
    return differences(known, snapshot(server, changed | names | _renamed(server)))


def other_nics(server: MemoryServer) -> set[str]:
    """The NICs that are not there, or whose name another one has."""
    found = {nic: server.links.get(nic) for nic in NICS}
    return {nic for nic, link in found.items() if link is None or link.mac != mac(nic)}


def _renamed(server: MemoryServer) -> set[str]:
    return {name for name, link in server.links.items() if link.renamed} - set(NICS)


def _without(facts: Mapping[str, Mapping[str, Any]], names: Collection[str]) -> dict[str, Any]:
    return {
        kind: {
            where: value for where, value in found.items() if not set(where.split()) & set(names)
        }
        for kind, found in facts.items()
    }


def not_whole(
    server: MemoryServer, desired: DesiredState | None, others: Others, before: Mapping[str, Any]
) -> list[str]:
    """What of `desired` is missing, what is there too much, and what was not put back. before: the
    snapshot of the server before anything of ours."""
    if desired is None:
        return bare(server, before, others)
    wanted = canonical(desired)
    everything = Unmarked(
        sysctls=frozenset(server.sysctls),
        bridges=frozenset(server.links),
        addresses=frozenset(
            (n, a)
            for n, link in server.links.items()
            for a in link.addresses
            if a not in link.theirs
        ),
        routes=frozenset(server.main_routes),
    )
    found = server.read(server.read_switch(), everything)
    complaints = list(ineffective_queues(desired, found))
    for name in Collections.model_fields:
        if name != "sysctls":
            here, there = set(getattr(found, name)), set(getattr(wanted, name))
            complaints += [f"{name}: {e.key} is missing" for e in there - here]
            complaints += [f"{name}: {e.key} is too much" for e in here - there]
            if len(getattr(found, name)) != len(here):
                complaints.append(f"{name}: something is there twice")
    complaints += [f"{row.key} is not in use" for row in found.unused_rows]
    complaints += _down(server, desired)
    return complaints + _sysctls(server, wanted, others) + _nics(server, wanted)


def _down(server: MemoryServer, desired: DesiredState) -> list[str]:
    names = [name for bridge in desired.bridges for name in (bridge.name, bridge.nic)]
    here = [(name, server.links[name]) for name in names if name in server.links]
    return [
        *(f"{name} is down" for name, link in here if not link.up),
        *(f"{name} is not open" for name, link in here if not link.opened),
    ]


def _sysctls(server: MemoryServer, wanted: Collections, others: Others) -> list[str]:
    values = {sysctl.name: sysctl.value for sysctl in wanted.sysctls}
    here = (nic for nic in NICS if nic not in other_nics(server))
    for name in (sysctl for nic in here for sysctl in sysctls_of(nic)):
        if name in server.sysctls and name not in others.edited_sysctls:
            values.setdefault(name, "0")
    return [
        f"{name} is {server.sysctls.get(name)}, not {value}"
        for name, value in values.items()
        if server.sysctls.get(name) != value
    ]


def _nics(server: MemoryServer, wanted: Collections) -> list[str]:
    bridge_of = {bridge.nic: bridge.name for bridge in wanted.bridges}
    complaints = []
    for nic in (nic for nic in NICS if nic in server.links):
        link = server.links[nic]
        held = [address for address in link.addresses if address not in link.theirs]
        if nic in bridge_of:
            complaints += [f"{nic} still has {held}"] if held else []
            complaints += _lacking_v6(server, nic, bridge_of[nic])
        # Of one family, the order counts.
        elif nic not in other_nics(server) and sorted(held, key=_family) != [*base_addresses(nic)]:
            complaints.append(f"{nic} has {held}, not its own address")
        if nic not in bridge_of and nic not in other_nics(server) and not server.links[nic].up:
            complaints.append(f"{nic} is down")
    routes = base_routes(bridge_of.get("nic0", "nic0"))
    if {*server.main_routes} != {*routes} and "nic0" not in other_nics(server):
        complaints.append(f"the routes of others are {server.main_routes}, not {routes}")
    return complaints


def _family(address: str) -> bool:
    return ":" in address


def _lacking_v6(server: MemoryServer, nic: str, bridge: str) -> list[str]:
    moved = {address for address in base_addresses(nic) if ":" in address}
    there = server.links[bridge].addresses if bridge in server.links else []
    lacking = moved - {*there}
    return [f"{bridge} lacks {lacking}"] if lacking and nic not in other_nics(server) else []
