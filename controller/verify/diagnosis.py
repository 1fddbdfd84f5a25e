"""Finds what stands in the way of a plan and no server can find alone. Pure.

Each agent finds what stands in the way on its own server (`agent doctor`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from placewire.agent.contract.diagnosis import Diagnosis, Finding
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import NicFacts
from placewire.controller.agent_advice import find_out_why, lab_first, make_anew
from placewire.controller.own_lab import OwnLab
from placewire.controller.plan.job import ReplayJob, TorchrunJob
from placewire.controller.plan.plan import Plan
from placewire.controller.verify.gpus import gpu_findings
from placewire.optimizer.cluster_plan.section import PlanNic, PlanServer
from placewire.optimizer.quantities import format_bits_per_second

# Certificates and logs are compared by time, and all transfers of a measurement begin together.
_CLOCKS_APART_SECONDS = 1.0
# `controller lab up` starts each switch with a large send buffer, looks that the switch has it, and
# puts the machine's setting back, which agents then read.
_SEEN_TO_BY_LABS = "net.core.wmem_default"
_UNIT = re.compile(r"systemctl \w+ (openvswitch-switch|placewire-agent)")


def plan_findings(plan: Plan, hellos: Mapping[str, Hello]) -> dict[str, list[Finding]]:
    """Finds where servers are not as the plan says; skips those that do not answer."""
    computes = not isinstance(plan.job, ReplayJob)
    processes = plan.job.processes if isinstance(plan.job, TorchrunJob) else 0
    return {
        server.name: [
            *_server_findings(server, hellos[server.name]),
            *(gpu_findings(server, hellos[server.name], processes) if computes else ()),
        ]
        for server in plan.cluster.servers
        if server.name in hellos
    }


def of_a_lab(findings: Sequence[Finding], lab: OwnLab) -> tuple[Finding, ...]:
    """Leaves out what does not hold of a lab's servers, though agents find it on their machine. A
    lab's switches and agents have no units of systemd: says what to do instead where an agent
    advises `systemctl`. What it advises besides stays as it is."""
    instead = f"in a lab, instead of systemctl: {make_anew(lab.name)}"
    return tuple(
        one.model_copy(update={"remedy": f"{one.remedy}; {instead}"})
        if _UNIT.search(one.remedy)
        else one
        for one in findings
        if one.where != _SEEN_TO_BY_LABS
    )


def _server_findings(server: PlanServer, hello: Hello) -> Iterator[Finding]:
    facts = {nic.name: nic for nic in hello.capabilities.nics}
    for nic in server.nics:
        if (there := facts.get(nic.name)) is None:
            yield Finding(
                severity="error", what="is not there", where=f"NIC {nic.name}",
                why=f"the plan's rail {nic.rail} goes over it; the server has {', '.join(facts)}",
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
    """version: the controller's. ahead_seconds: how far each server's clock is ahead of ours."""
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
    """addresses: of two agents that both name themselves as this server."""
    return Finding(
        severity="error", what=f"runs twice, at {addresses[0]} and {addresses[1]}",
        where="agent", why="it is not known which of the two answers, so none is asked to change",
        remedy=f"controller authority deny {server}, then controller enrol for both servers",
    )  # fmt: skip


def absent(server: str, about_lab: str = "") -> Finding:
    """about_lab: what may be the matter with the lab, where the plan may be of one."""
    return Finding(
        severity="error", what="does not dial in", where="agent",
        why="nothing can be asked of that server, and nothing changed there",
        remedy=lab_first(about_lab, find_out_why([server])),
    )  # fmt: skip
