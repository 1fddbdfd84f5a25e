"""Asks servers what they have in force, reads it back, and finds the allocation behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from placewire.agent.contract.messages import Observation, Observe, ReadBack, ReadBackResult
from placewire.controller.agents.agents import Agents
from placewire.controller.errors import AgentProblem
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Journal
from placewire.controller.records.report import RunReport, allocation_digest
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.network.script_allocation import load_allocation
from placewire.optimizer.placement import load_placement

# An agent that runs dials in within this time.
_PRESENT_SECONDS = 3.0


async def observed(agents: Agents, plan: Plan) -> dict[str, Observation | None]:
    """By server of the plan; None where its agent does not dial in, or does not answer."""
    servers = [server.name for server in plan.cluster.servers]
    missing = await agents.missing(servers, timeout_seconds=_PRESENT_SECONDS)
    observations: dict[str, Observation | None] = dict.fromkeys(servers)
    try:
        present = {server: Observe() for server in servers if server not in missing}
        observations |= await agents.ask_all(present, Observation, timeout_seconds=10)
    except AgentProblem as problem:
        observations |= problem.answered
    return observations


async def read_back(
    agents: Agents, observations: Mapping[str, Observation | None]
) -> dict[str, ReadBackResult]:
    """How the network, in the kernel too, differs from what is in force. Only of servers that
    answer and have something in force."""
    in_force = {
        server: ReadBack(generation=answer.lease.generation)
        for server, answer in observations.items()
        if answer is not None and answer.lease.is_in_force
    }
    try:
        return await agents.ask_all(in_force, ReadBackResult, timeout_seconds=15)
    except AgentProblem as problem:
        return dict(problem.answered)


def allocation_of(journal: Journal, plan_name: str, plan_digest: str) -> Allocation | None:
    """The allocation that the decision with this digest was compiled from; None where its file is
    gone, or has another by now, as after the cache was emptied, or another controller made the
    decision."""
    for run in reversed(journal.runs(plan_name)):
        try:
            report = RunReport.model_validate_json(run.report)
        except ValidationError:  # Another version of Placewire wrote the report.
            continue
        if report.plan_digest == plan_digest:
            try:
                if "allocation" in report.files:
                    return load_allocation(Path(report.files["allocation"]))
                placement = load_placement(Path(report.files["placement"]))
            except (OSError, KeyError, ValueError):
                return None
            # A former release's report does not say which it was.
            is_it = report.allocation_digest in (None, allocation_digest(placement))
            return placement if is_it else None
    return None
