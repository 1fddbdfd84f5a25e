"""`controller doctor PLAN`: reports what would hinder the plan, on its servers and here."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.abandonable import abandonable
from placewire.controller.commands.arguments import add_network_only, add_plan
from placewire.controller.commands.lab_advice import about_lab
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import (
    AgentProblem,
    JobFailed,
    PlacewireError,
    UsageError,
)
from placewire.controller.few_names import few_names
from placewire.controller.own_lab import own_lab

if TYPE_CHECKING:
    from placewire.agent.contract.diagnosis import Finding, Severity
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools
    from placewire.controller.verify.checkpoint_folder import CheckpointOutlook

PURPOSE = "report what would hinder the plan, on every server and here; changes nothing"
_HERE = "this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_network_only(parser, "only what would hinder `apply --network-only`, which runs no job")


def run(arguments: argparse.Namespace) -> int:
    async def doctor(plan: Plan, tools: Tools) -> int:
        from placewire.controller.show.findings import findings_table

        servers = await _on_servers(plan, tools, arguments.plan)
        job = None if arguments.network_only else await job_outlook(plan, tools)
        found = {_HERE: [*of_job(job), *_of_change(tools)], **servers}
        every = [one for some in found.values() for one in some]
        if arguments.json:
            documents = {s: [one.model_dump() for one in some] for s, some in found.items()}
            print_json({"servers": documents})
            return exit_code(job, servers)
        if every:
            tools.show.console.print(findings_table(found))
        if all(one.severity == "note" for one in every):
            tools.show.say("nothing stands in the way of the plan")
        return exit_code(job, servers)

    return in_session(arguments, doctor, makes_journal=False, runs_job=True)


@dataclass(frozen=True)
class JobOutlook:
    """Tells what would become of the job under `apply`. launch: why no rank can be started.
    checkpoints: what ranks would make of their folder; None where nobody looked. problems: each
    with its server, why ranks could not use that folder or the file that they begin from, or why
    that cannot be known. servers: that were asked."""

    launch: PlacewireError | None = None
    checkpoints: CheckpointOutlook | None = None
    problems: Sequence[UsageError | JobFailed] = ()
    servers: Sequence[str] = ()

    @property
    def is_refused_everywhere(self) -> bool:
        """`apply` asks only the servers that get ranks, and one that refuses may get none."""
        refusing = {problem.where for problem in self.problems if _is_refusal(problem)}
        return bool(self.servers) and refusing.issuperset(self.servers)


async def job_outlook(plan: Plan, tools: Tools) -> JobOutlook:
    from placewire.controller.plan.job import PlacedJob
    from placewire.controller.verify.checkpoint_folder import checkpoint_outlook, planned_identity
    from placewire.controller.verify.initial_state import initial_state_problems

    try:
        await abandonable(tools.launcher.require_ready)
        if not isinstance(plan.job, PlacedJob):
            return JobOutlook()
        # Which servers get ranks, only the decision tells.
        servers = [server.name for server in plan.cluster.servers]
        identity = planned_identity(plan.job)
        looked = await checkpoint_outlook(plan.job, identity, tools.launcher, servers)
        of_state = await initial_state_problems(plan.job, looked, tools.launcher, servers)
    except PlacewireError as problem:
        return JobOutlook(launch=problem)
    problems = (*looked.problems.values(), *of_state.values())
    return JobOutlook(checkpoints=looked, problems=problems, servers=servers)


def exit_code(job: JobOutlook | None, servers: Mapping[str, Sequence[Finding]]) -> int:
    """With an error, that of `apply`, which looks at the launcher, the agents and what ranks would
    use in this order."""
    if job is not None and job.launch is not None:
        return job.launch.exit_code
    if any(one.severity == "error" for some in servers.values() for one in some):
        return AgentProblem.exit_code
    return UsageError.exit_code if job is not None and job.is_refused_everywhere else 0


def _is_refusal(problem: UsageError | JobFailed) -> bool:
    """Else nobody could look, which `apply` says before it goes on."""
    return isinstance(problem, UsageError)


async def _on_servers(plan: Plan, tools: Tools, plan_file: Path) -> Mapping[str, Sequence[Finding]]:
    """Returns the findings by server: those of its agent, and what the plan adds to them."""
    from placewire.agent.contract.diagnosis import Diagnosis
    from placewire.agent.contract.messages import Diagnose
    from placewire.controller.verify import diagnosis

    servers = [server.name for server in plan.cluster.servers]
    missing = await tools.agents.missing(servers, timeout_seconds=5)
    present = [server for server in servers if server not in missing]
    asked = time.time()
    try:
        answers = await tools.agents.ask_all(
            dict.fromkeys(present, Diagnose()), Diagnosis, timeout_seconds=30
        )
    except AgentProblem as problem:
        answers = dict(problem.answered)
    middle, uncertain = (asked + time.time()) / 2, (time.time() - asked) / 2
    ahead = {s: _beyond(a.clock_unix - middle, uncertain) for s, a in answers.items()}
    planned = diagnosis.plan_findings(plan, {s: tools.agents.hello[s] for s in present})
    common = diagnosis.versions_and_clocks(answers, version("placewire"), ahead)
    found: dict[str, Sequence[Finding]] = {}
    lab = about_lab(plan, plan_file, [server for server in servers if server not in answers])
    for server in servers:
        own = answers[server].findings if server in answers else (diagnosis.absent(server, lab),)
        own = own if (ours := own_lab()) is None else diagnosis.of_a_lab(own, ours)
        rivals = tools.agents.rivals.get(server)
        twice = [] if rivals is None else [diagnosis.copied(server, rivals)]
        found[server] = (*twice, *planned.get(server, ()), *common.get(server, ()), *own)
    return found


def _beyond(seconds: float, uncertain: float) -> float:
    """The part of a difference of clocks that the time that asking took cannot explain."""
    return max(0.0, abs(seconds) - uncertain) * (1 if seconds > 0 else -1)


def of_job(job: JobOutlook | None) -> Iterator[Finding]:
    """Servers with the same problem share a finding."""
    from placewire.agent.contract.diagnosis import Finding

    if job is None:
        return
    if (launch := job.launch) is not None:
        yield Finding(
            severity="error", what=launch.what, where=launch.where or "launch",
            why="no job can be started; `apply --network-only` works", remedy=launch.remedy,
        )  # fmt: skip
    alike: dict[tuple[bool, str, str], list[str]] = {}
    for problem in job.problems:
        key = _is_refusal(problem), problem.what, problem.remedy
        alike.setdefault(key, []).append(problem.where)
    for (is_refusal, what, remedy), some in alike.items():
        yield Finding(
            severity="error" if is_refusal and job.is_refused_everywhere else "warning",
            what=what, where=few_names(some), remedy=remedy,
            why="a job that has a rank there cannot begin; `apply` asks the servers that get ranks"
            if is_refusal
            else "ranks look at it when they begin",
        )  # fmt: skip
    begins = {} if job.checkpoints is None else job.checkpoints.beginnings()
    for sentence, where in begins.items():
        why, remedy = "what is in job.checkpoint.folder decides it", ""
        if len(begins) > 1:
            why = "servers see different folders, and ranks refuse one that is not shared"
            remedy = "mount job.checkpoint.folder on every server that may get a rank"
        severity: Severity = "warning" if len(begins) > 1 else "note"
        yield Finding(severity=severity, what=sentence, where=where, why=why, remedy=remedy)


def _of_change(tools: Tools) -> Iterator[Finding]:
    from placewire.agent.contract.diagnosis import Finding

    if (holder := tools.journal.change_lock.holder()) is not None:
        yield Finding(
            severity="warning", what=f"a change is under way: {holder}", where="journal",
            why="only one change can be made at a time", remedy="",
        )  # fmt: skip
