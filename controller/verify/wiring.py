"""Checks that NICs are on the rails that the plan says, where a measurement got nothing through.

Each NIC asks who answers on its wire; an address that answers is on the same wire. A rail's wire is
the one with most of the rail's NICs; a NIC on another rail's wire is misplaced. `verdict` is pure;
the rest asks the agents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from placewire.agent.contract.entries import bridge_name
from placewire.agent.contract.measurement import LinkMeasurement
from placewire.agent.contract.messages import FindNeighbours, Neighbours
from placewire.controller.agents.agents import Agents, require_asked_for
from placewire.controller.errors import AgentProblem, VerificationFailed
from placewire.controller.plan.plan import Plan

# A NIC asks for so many other servers of each rail: enough to say which rail its wire is.
_MOST_ASKED = 8


@dataclass(frozen=True, order=True)
class Nic:
    server: str
    name: str
    rail: str

    def __str__(self) -> str:
        return f"{self.server} {self.name} (rail {self.rail})"


@dataclass(frozen=True)
class Verdict:
    """nics: to be looked at; some or all of them are misplaced. what: the finding in words."""

    nics: tuple[Nic, ...]
    what: str


async def require_as_wired(agents: Agents, plan: Plan, links: Sequence[LinkMeasurement]) -> None:
    """Where nothing came through, raises VerificationFailed if a cable is in the wrong switch."""
    silent = [link for link in links if link.measured_bits_per_second == 0]
    servers = {server for link in silent for server in (link.source, link.destination)}
    if not servers:
        return
    found = verdict(nics_of(plan), await _heard(agents, plan, servers))
    if found is not None:
        raise VerificationFailed(
            found.what,
            where=", ".join(f"{nic.server} {nic.name}" for nic in found.nics),
            remedy="put each cable into its rail's switch, or correct the plan's rails; "
            "`controller verify` and `apply` measure again",
            links=links,
        )


def nics_of(plan: Plan) -> tuple[Nic, ...]:
    return tuple(
        Nic(server.name, nic.name, nic.rail)
        for server in plan.cluster.servers
        for nic in server.nics
    )


async def _heard(
    agents: Agents, plan: Plan, servers: Collection[str]
) -> Mapping[Nic, frozenset[Nic]]:
    """Returns who answered on the wire of each NIC of these servers; skips unreachable servers.
    Raises AgentProblem where a server tells of others than it was asked for."""
    by_address = {n.ip: Nic(s.name, n.name, n.rail) for s in plan.cluster.servers for n in s.nics}
    own = {s.name: s.nics for s in plan.cluster.servers if s.name in servers}
    requests = {
        server: FindNeighbours(
            interfaces=tuple(bridge_name(nic.name) for nic in nics),
            addresses=tuple(_others(server, by_address)),
        )
        for server, nics in own.items()
    }
    try:
        answers: Mapping[str, Neighbours] = await agents.ask_all(requests, Neighbours, 10)
    except AgentProblem as problem:
        answers = problem.answered
    for server, answer in answers.items():
        told = ((found.interface, found.address) for found in answer.found)
        asked = product(requests[server].interfaces, requests[server].addresses)
        require_asked_for(server, told, asked, "neighbours")
    return {
        by_address[nic.ip]: frozenset(
            by_address[found.address]
            for found in answer.found
            if found.interface == bridge_name(nic.name)
        )
        for server, answer in answers.items()
        for nic in own[server]
    }


def _others(server: str, by_address: Mapping[str, Nic]) -> Iterable[str]:
    """Yields addresses of other servers' NICs: on each rail the next ones in the plan's order."""
    known = list(by_address.items())
    begin = next(k for k, (_, nic) in enumerate(known) if nic.server == server)
    asked: Counter[str] = Counter()
    for address, nic in (*known[begin:], *known[:begin]):
        if nic.server != server and asked[nic.rail] < _MOST_ASKED:
            asked[nic.rail] += 1
            yield address


def verdict(nics: Iterable[Nic], heard: Mapping[Nic, Collection[Nic]]) -> Verdict | None:
    """Returns None without a sign of a cable in a wrong switch. A NIC that hears nobody is none."""
    wires = _wires(nics, heard)
    mixed = [wire for wire in wires if len({nic.rail for nic in wire}) > 1]
    if not mixed:
        return None
    home, unsure = _homes(wires)
    misplaced = [
        (nic, rail)
        for rail, wire in home.items()
        for nic in wire
        if nic.rail != rail and home.get(nic.rail) not in (None, wire)
    ]
    if misplaced:
        return Verdict(tuple(sorted(nic for nic, _ in misplaced)), _told(misplaced))
    if not unsure:
        return None  # two rails share a wire, and every NIC reaches its own rail
    words = "; ".join(", ".join(map(str, wire)) for wire in mixed)
    what = f"rails are wired crosswise, on one of these servers or the other. On one wire: {words}"
    return Verdict(tuple(nic for wire in mixed for nic in wire), what)


def _told(misplaced: Sequence[tuple[Nic, str]]) -> str:
    """Tells it as one mistake where two NICs of a server are on each other's rails."""
    on = dict(misplaced)
    said = []
    for nic, rail in sorted(misplaced):
        other = next((n for n in on if n.server == nic.server and n.rail == rail), None)
        if other is None or on[other] != nic.rail:
            said.append(f"{nic} is on rail {rail}")
        elif nic < other:
            said.append(
                f"{nic.server} {nic.name} and {other.name} are wired crosswise: {nic.name} (rail "
                f"{nic.rail}) is on rail {rail}, {other.name} (rail {other.rail}) on rail "
                f"{on[other]}"
            )
    return "; ".join(said)


def _wires(nics: Iterable[Nic], heard: Mapping[Nic, Collection[Nic]]) -> list[tuple[Nic, ...]]:
    """Returns sets of NICs that hear each other, directly or through others; in order."""
    wire_of = {nic: {nic} for nic in nics}
    for nic, answering in heard.items():
        for other in answering:
            if wire_of[nic] is not wire_of[other]:
                joined = wire_of[nic] | wire_of[other]
                wire_of |= dict.fromkeys(joined, joined)
    return sorted({tuple(sorted(wire)) for wire in wire_of.values()})


def _homes(wires: Sequence[tuple[Nic, ...]]) -> tuple[dict[str, tuple[Nic, ...]], bool]:
    """Returns each rail's own wire, and whether there is a rail for which that is unsure."""
    counts = {wire: Counter(nic.rail for nic in wire) for wire in wires}
    home, unsure = {}, False
    for rail in sorted({nic.rail for wire in wires for nic in wire}):
        most = max(counts[wire][rail] for wire in wires)
        best = [wire for wire in wires if counts[wire][rail] == most]
        if len(best) == 1:
            home[rail] = best[0]
        elif any(len(counts[wire]) > 1 for wire in best):
            unsure = True
    return home, unsure
