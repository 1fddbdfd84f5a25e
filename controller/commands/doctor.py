"""`controller doctor PLAN`: reports what would hinder the plan, on its servers and here."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from placewire.controller.abandonable import abandonable
from placewire.controller.commands.arguments import add_plan
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import AgentProblem, PlacewireError
from placewire.controller.few_names import few_names
from placewire.controller.own_lab import own_lab

if TYPE_CHECKING:
    from placewire.agent.contract.diagnosis import Finding
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "report what would hinder the plan, on every server and here; changes nothing"
# With an error, `apply` would end with the same exit code: an agent is unreachable or would refuse.
_EXIT_CODES = {"note": 0, "warning": 0, "error": 5}
_HERE = "this machine"

add_arguments = add_plan


def run(arguments: argparse.Namespace) -> int:
    async def doctor(plan: Plan, tools: Tools) -> int:
        from placewire.controller.show.findings import findings_table

        found = await _findings(plan, tools)
        if arguments.json:
            documents = {s: [one.model_dump() for one in some] for s, some in found.items()}
            print_json({"servers": documents})
        elif any(found.values()):
            tools.show.console.print(findings_table(found))
        else:
            tools.show.say("nothing stands in the way of the plan")
        codes = [_EXIT_CODES[one.severity] for some in found.values() for one in some]
        return max(codes, default=0)

    return in_session(arguments, doctor, runs_job=True)


async def _findings(plan: Plan, tools: Tools) -> dict[str, Sequence[Finding]]:
    """By server, and for this machine under the name _HERE."""
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
    for server in servers:
        own = answers[server].findings if server in answers else (diagnosis.absent(server),)
        own = own if (lab := own_lab()) is None else diagnosis.of_a_lab(own, lab)
        rivals = tools.agents.rivals.get(server)
        twice = [] if rivals is None else [diagnosis.copied(server, rivals)]
        found[server] = (*twice, *planned.get(server, ()), *common.get(server, ()), *own)
    return {_HERE: await _here(plan, tools), **found}


def _beyond(seconds: float, uncertain: float) -> float:
    """The part of a difference of clocks that the time that asking took cannot explain."""
    return max(0.0, abs(seconds) - uncertain) * (1 if seconds > 0 else -1)


async def _here(plan: Plan, tools: Tools) -> Sequence[Finding]:
    from placewire.agent.contract.diagnosis import Finding

    found: list[Finding] = []
    try:
        await abandonable(tools.launcher.require_ready)
        found += await _of_checkpoints(plan, tools)
    except PlacewireError as problem:
        found.append(Finding(
            severity="warning", what=problem.what, where=problem.where or "launch",
            why="no job can be started; `apply --network-only` works", remedy=problem.remedy,
        ))  # fmt: skip
    if (holder := tools.journal.change_lock.holder()) is not None:
        found.append(Finding(
            severity="note", what=f"a change is under way: {holder}", where="journal",
            why="only one change can be made at a time", remedy="",
        ))  # fmt: skip
    return found


async def _of_checkpoints(plan: Plan, tools: Tools) -> Sequence[Finding]:
    """One for all servers that say the same. Which of them get ranks, only the decision tells."""
    from placewire.agent.contract.diagnosis import Finding
    from placewire.controller.plan.job import PlacedJob
    from placewire.controller.verify.checkpoint_folder import checkpoint_outlook, planned_identity

    if not isinstance(plan.job, PlacedJob):
        return []
    servers = [server.name for server in plan.cluster.servers]
    identity = planned_identity(plan.job)
    outlook = await checkpoint_outlook(plan.job, identity, tools.launcher, servers)
    alike: dict[tuple[str, str], list[str]] = {}
    for server, problem in outlook.problems.items():
        alike.setdefault((problem.what, problem.remedy), []).append(server)
    hindering = [
        Finding(
            severity="warning", what=what, where=few_names(some), remedy=remedy,
            why="a job that has a rank there cannot begin; `apply --network-only` works",
        )
        for (what, remedy), some in alike.items()
    ]  # fmt: skip
    beginning = [
        Finding(
            severity="note", what=begins, where=some,
            why="what is in job.checkpoint.folder decides it", remedy="",
        )
        for begins, some in outlook.beginnings().items()
    ]  # fmt: skip
    return [*hindering, *beginning]
