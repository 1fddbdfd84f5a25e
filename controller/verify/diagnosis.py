"""What stands in the way of a plan: on its servers, between it and them, and here. Pure.

Each server's own findings are its agent's (`agent doctor`); here are those that one server alone
cannot have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.diagnosis import Diagnosis, Finding
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import NicFacts
from placewire.controller.plan.plan import Plan
from placewire.optimizer.cluster_plan.section import PlanNic, PlanServer
from placewire.optimizer.quantities import format_bits_per_second

# Certificates and logs are compared by it, and all transfers of a measurement begin at one time.
_CLOCKS_APART_SECONDS = 1.0


def plan_findings(plan: Plan, hellos: Mapping[str, Hello]) -> dict[str, list[Finding]]:
    """What servers are not as the plan says; only of those that answer."""
    return {
        server.name: list(_server_findings(server, hellos[server.name].capabilities))
        for server in plan.cluster.servers
        if server.name in hellos
    }


def _server_findings(server: PlanServer, found: Capabilities) -> Iterator[Finding]:
    facts = {nic.name: nic for nic in found.nics}
    for nic in server.nics:
        if (there := facts.get(nic.name)) is None:
            yield Finding(
                severity="error", what="is not there", where=f"NIC {nic.name}",
                why=f"the plan's rail {nic.rail} goes over it; there is {', '.join(facts)}",
                remedy="correct the plan's cluster, or plug it in",
            )  # fmt: skip
        else:
            yield from _nic_findings(nic, there)


def _nic_findings(nic: PlanNic, there: NicFacts) -> Iterator[Finding]:
    where, speed = f"NIC {nic.name}", there.speed_bits_per_second
    if speed is not None and speed < nic.rate_bits_per_second:
        yield Finding(
            severity="error", where=where,
            what=f"runs at {format_bits_per_second(speed)}, the plan says "
            f"{format_bits_per_second(nic.rate_bits_per_second)}",
            why="what is promised over it cannot be delivered",
            remedy="look at its cable and its switch port, or correct the plan's rate",
        )  # fmt: skip
    if there.carrier is False:
        yield Finding(
            severity="error", what="has no carrier", where=where,
            why="nobody is at the other end of its cable",
            remedy="look at its cable and its switch port",
        )  # fmt: skip
    if there.bridge is None and nic.address not in there.addresses:
        has = ", ".join(there.addresses) or "no address"
        yield Finding(
            severity="note", what=f"has {has}, not the plan's {nic.address}", where=where,
            why="the plan gives it that address while it is in force",
            remedy="",
        )  # fmt: skip


def versions_and_clocks(
    diagnoses: Mapping[str, Diagnosis], version: str, ahead_seconds: Mapping[str, float]
) -> dict[str, list[Finding]]:
    """version: the controller's own. ahead_seconds: by how much each server's clock is ahead."""
    found: dict[str, list[Finding]] = {server: [] for server in diagnoses}
    for server, diagnosis in diagnoses.items():
        if diagnosis.version != version:
            found[server].append(Finding(
                severity="warning", where="agent",
                what=f"is version {diagnosis.version}, the controller {version}",
                why="one may not understand what the other says",
                remedy="upgrade both: docs/how-to/upgrade.md",
            ))  # fmt: skip
        if abs(ahead := ahead_seconds[server]) > _CLOCKS_APART_SECONDS:
            found[server].append(Finding(
                severity="warning", where="clock",
                what=f"is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} ours",
                why="certificates are checked against it, and logs are compared by it",
                remedy="timedatectl set-ntp true, on both",
            ))  # fmt: skip
    return found


def copied(server: str, addresses: tuple[str, str]) -> Finding:
    """addresses: of two agents that say that they are this server."""
    return Finding(
        severity="error", what=f"is said by two agents, at {addresses[0]} and {addresses[1]}",
        where="agent", why="nobody can say which of them is asked, so neither is asked to change",
        remedy=f"controller authority deny {server}, then controller enrol for both servers",
    )  # fmt: skip


def absent(server: str) -> Finding:
    return Finding(
        severity="error", what="does not dial in", where="agent",
        why="nothing can be asked of that server, and nothing changed there",
        remedy="systemctl status placewire-agent there; does it reach this controller's --listen?",
    )  # fmt: skip
