"""Makes a proposal of a plan: decides, compiles, and asks every server what would change."""

from __future__ import annotations

import asyncio

from placewire.controller.abandonable import abandonable
from placewire.controller.change.change import preview
from placewire.controller.change.generations import next_generations
from placewire.controller.compile import deliverable
from placewire.controller.compile.network import compile_network, larger_frames
from placewire.controller.decide.decide import PlacementDecision, decide
from placewire.controller.decide.traffic import TrafficDecision, decide_traffic
from placewire.controller.errors import AgentRefused, PlanError, UsageError
from placewire.controller.plan.job import PlacedJob, TorchrunJob
from placewire.controller.story.dropped_servers import dropped_servers
from placewire.controller.story.proposal import Proposal
from placewire.controller.story.tools import ApplyRequest, Tools
from placewire.controller.verify.checkpoint_folder import (
    CheckpointOutlook,
    captured_identity,
    checkpoint_outlook,
)
from placewire.controller.verify.initial_state import initial_state_problems
from placewire.optimizer.device_names import server_of


async def propose(request: ApplyRequest, tools: Tools) -> Proposal:
    """Changes nothing on any server. Raises what `apply` would end with, also where no rank of the
    job could be started."""
    plan, show = request.plan, tools.show
    servers = [server.name for server in plan.cluster.servers]
    if not request.network_only:
        await abandonable(tools.launcher.require_ready)
    with tools.stage("agents"):
        await tools.agents.wait_for(servers, timeout_seconds=10)
    with tools.stage("decide"):
        decision = await _decision(request, tools)
        if mistakes := deliverable.rate_mistakes(plan, decision.allocation):
            raise PlanError(str(request.plan_file), mistakes)
    show.decision(decision)
    if isinstance(decision, PlacementDecision) and not request.network_only:
        await _look_at_files(decision, tools)
    with tools.stage("preview"):
        hello = {server: tools.agents.hello[server] for server in servers}
        able = {server: h.capabilities for server, h in hello.items()}
        for server, refusal in deliverable.refusals(able).items():
            raise AgentRefused(server, refusal)
        for note in larger_frames(plan, able):
            show.say(note)
        generations = next_generations(tools.journal, tools.agents, servers)
        desired = compile_network(plan, decision.allocation, able, generations)
        for doubt in deliverable.doubts(plan, able, desired):
            show.say(doubt)
        previewed = await preview(tools.agents, desired)
    show.changes(previewed)
    for line in await dropped_servers(plan, tools):
        show.say(line)
    return Proposal(decision, desired, previewed)


async def _look_at_files(decision: PlacementDecision, tools: Tools) -> None:
    """Says with which step the job begins. Asks the servers that get ranks: others may lack the
    files. Raises UsageError where ranks would refuse the folder of checkpoints, or the file that
    they begin from."""
    job = decision.variant.job
    if not isinstance(job, PlacedJob):
        return
    servers = [*dict.fromkeys(map(server_of, decision.placement.devices_used))]
    outlook = CheckpointOutlook({}, {})
    if job.checkpoint is not None:
        identity = await asyncio.to_thread(captured_identity, job, decision.graph_file)
        outlook = await checkpoint_outlook(job, identity, tools.launcher, servers)
    of_state = await initial_state_problems(job, outlook, tools.launcher, servers)
    problems = [*outlook.problems.values(), *of_state.values()]
    for problem in problems:
        if isinstance(problem, UsageError):
            raise problem
    told = outlook.beginnings()
    for begins, some in told.items():
        tools.show.say(begins if len(told) == 1 else f"{some}: {begins}")
    if len(told) > 1:  # NFS shows names late: no reason to refuse it.
        tools.show.say(
            "these servers see different folders, perhaps because job.checkpoint.folder is not "
            "mounted on some; ranks refuse one that is not shared, once the network is shaped"
        )
    for problem in problems:
        tools.show.say(f"{problem.where}: {problem.what}; ranks look at it when they begin")


async def _decision(request: ApplyRequest, tools: Tools) -> PlacementDecision | TrafficDecision:
    plan = request.plan
    if isinstance(plan.job, TorchrunJob):
        return decide_traffic(plan, plan.job, tools.cache)
    return await decide(plan, request.plan_file, tools.launcher, tools.cache, tools.show.progress)
