"""The laws that must hold of a server at the end of a run with faults: which decisions may be in
force, and what a whole state is. They do not use the state machine of agent/reconcile."""

from __future__ import annotations

from typing import Literal

from placewire.agent.contract.state import Collections, DesiredState
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.effective import ineffective_queues
from placewire.agent.reconcile.unmarkable import Unmarked
from tests.agent.foreign_process import Others
from tests.agent.memory_server import (
    NICS,
    MemoryServer,
    base_address,
    base_route,
    sysctls_of,
)

Outcome = Literal["done", "refused", "unknown"]


class Decisions:
    """Which generations (0: nothing of ours) may be in force once all leases have run out, by the
    decisions that reached the agent. `unknown`: nobody heard the outcome, so both are right."""

    def __init__(self) -> None:
        self.possible = frozenset({0})
        self._beneath: dict[int, frozenset[int]] = {}

    def commit(self, generation: int, outcome: Outcome, *, for_good: bool) -> None:
        if outcome == "refused" or not for_good:
            return
        self._beneath.setdefault(generation, self.possible - {generation})
        certain = frozenset() if outcome == "done" else self.possible
        self.possible = certain | {generation}

    def restore(self, generation: int, outcome: Outcome) -> None:
        if outcome == "refused" or generation not in self.possible:
            return
        left = self.possible - {generation} if outcome == "done" else self.possible
        self.possible = left | self._beneath.get(generation, frozenset({0}))

    def destroy(self, outcome: Outcome) -> None:
        if outcome != "refused":
            left = frozenset() if outcome == "done" else self.possible
            self.possible = left | {0}


def not_whole(
    server: MemoryServer, desired: DesiredState | None, others: Others, vanished: set[str]
) -> list[str]:
    """What of `desired` is missing, what is there too much, and what was not put back."""
    wanted = canonical(desired) if desired is not None else Collections()
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
    complaints += found.problems if desired is None else _down(server, desired)
    return complaints + _sysctls(server, wanted, others) + _nics(server, wanted, vanished)


def _down(server: MemoryServer, desired: DesiredState) -> list[str]:
    names = [name for bridge in desired.bridges for name in (bridge.name, bridge.nic)]
    return [f"{n} is down" for n in names if n in server.links and not server.links[n].up]


def _sysctls(server: MemoryServer, wanted: Collections, others: Others) -> list[str]:
    values = {sysctl.name: sysctl.value for sysctl in wanted.sysctls}
    for name in (sysctl for nic in NICS for sysctl in sysctls_of(nic)):
        if name in server.sysctls and name not in others.edited_sysctls:
            values.setdefault(name, "0")
    return [
        f"{name} is {server.sysctls.get(name)}, not {value}"
        for name, value in values.items()
        if server.sysctls.get(name) != value
    ]


def _nics(server: MemoryServer, wanted: Collections, vanished: set[str]) -> list[str]:
    bridge_of = {bridge.nic: bridge.name for bridge in wanted.bridges}
    complaints = []
    for nic in (nic for nic in NICS if nic in server.links):
        held = server.links[nic].addresses
        if nic in bridge_of:
            complaints += [f"{nic} still has {held}"] if held else []
        elif held != [base_address(nic)] and (held or nic not in vanished):
            complaints.append(f"{nic} has {held}, not its own address")
        if nic not in bridge_of and not server.links[nic].up and nic not in vanished:
            complaints.append(f"{nic} is down")
    route = base_route(bridge_of.get("nic0", "nic0"))
    if server.main_routes != [route] and "nic0" not in vanished:
        complaints.append(f"the routes of others are {server.main_routes}, not {route}")
    return complaints
