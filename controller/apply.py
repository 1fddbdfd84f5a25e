"""The one story: plan in, training job on a proven network out, everything put back.

    decide ─▶ compile ─▶ preview ─▶ stage ─▶ measure ─▶ commit ─▶ job ─▶ keep or restore ─▶ report

No detail lives here. Left of `stage` nothing is touched; from there on every way out of this
function leaves each server on one whole state (controller/change/change.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.agent.contract.messages import Previewed
from placewire.agent.contract.state import DesiredState
from placewire.controller.change.change import NetworkChange, preview
from placewire.controller.change.preview_file import Preview, require_as_previewed
from placewire.controller.compile import deliverable
from placewire.controller.compile.network import compile_network, larger_frames
from placewire.controller.compile.ranks import rank_specs
from placewire.controller.compile.scripts import script_specs
from placewire.controller.compile.transfers import promises
from placewire.controller.decide.decide import Decision, decide
from placewire.controller.decide.measured.calibration import calibrate, wants_calibration
from placewire.controller.decide.traffic import TrafficDecision, decide_traffic
from placewire.controller.errors import (
    AgentProblem,
    AgentRefused,
    JobFailed,
    PlacewireError,
    UsageError,
)
from placewire.controller.plan.job import TorchrunJob
from placewire.controller.plan.plan import Plan
from placewire.controller.records.report import (
    CalibratedRow,
    RunReport,
    failure_row,
    of_placed,
    of_script,
)
from placewire.controller.records.traces import merge_traces
from placewire.controller.verify.bandwidth_check import measure, require_delivered
from placewire.controller.verify.rail_use import rail_rows
from placewire.controller.verify.wiring import require_as_wired
from placewire.job.contract.specification import Carried, ProgramSpec, RankEvent

if TYPE_CHECKING:
    from placewire.controller.agents.agents import Agents
    from placewire.controller.launch.launcher import Launcher
    from placewire.controller.records.journal import Journal
    from placewire.controller.show.story import Show
    from placewire.optimizer.allocation import Allocation


# No rank says anything within a step: so many times as long as predicted may one take.
SLOWER_STEPS = 20.0
MOST_MEASUREMENTS = 3


@dataclass(frozen=True)
class Request:
    """network_only: stop after the measurement, without a job. confirm: asked before a change.
    preview: what the change must be exactly, where somebody has looked at it before. measured:
    whether promised rates are, or only read back."""

    plan: Plan
    plan_file: Path
    network_only: bool
    confirm: Callable[[], Awaitable[bool]]
    preview: Preview | None = None
    measured: bool = True


@dataclass(frozen=True)
class Tools:
    """The effects that the story uses."""

    agents: Agents
    journal: Journal
    launcher: Launcher
    cache: Path
    logs: Path
    show: Show
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        self.show.stage(name)
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - started


@dataclass(frozen=True)
class Proposal:
    decision: Decision | TrafficDecision
    desired: dict[str, DesiredState]
    previewed: dict[str, Previewed]


async def propose(request: Request, tools: Tools) -> Proposal:
    """Decide and ask every server what it would change. Touches nothing."""
    plan, show = request.plan, tools.show
    servers = [server.name for server in plan.cluster.servers]
    with tools.stage("agents"):
        await tools.agents.wait_for(servers, timeout_seconds=10)
    with tools.stage("decide"):
        decision = await decided(request, tools)
    show.decision(decision)
    with tools.stage("preview"):
        hello = {server: tools.agents.hello[server] for server in servers}
        able = {server: h.capabilities for server, h in hello.items()}
        for server, refusal in deliverable.refusals(able).items():
            raise AgentRefused(server, refusal)
        for note in larger_frames(plan, able):
            show.say(note)
        desired = compile_network(
            plan,
            decision.allocation,
            able,
            {
                s: tools.journal.next_generation(s, h.lease.highest_generation)
                for s, h in hello.items()
            },
        )
        for doubt in deliverable.doubts(plan, able, desired):
            show.say(doubt)
        previewed = await preview(tools.agents, desired)
    show.changes(previewed)
    return Proposal(decision, desired, previewed)


async def decided(request: Request, tools: Tools) -> Decision | TrafficDecision:
    plan = request.plan
    if isinstance(plan.job, TorchrunJob):
        return decide_traffic(plan, plan.job, tools.cache)
    return await decide(plan, request.plan_file, tools.launcher, tools.cache, tools.show.progress)


async def apply(request: Request, tools: Tools) -> RunReport:
    """Raises a PlacewireError whose exit code says how far it came; see controller/errors.py."""
    plan, show = request.plan, tools.show
    proposal = await propose(request, tools)
    if request.preview is not None:
        require_as_previewed(request.preview, proposal)
    if not await request.confirm():
        raise UsageError("not confirmed; nothing was changed")
    decision = proposal.decision
    await end_left_ranks(tools)
    events: list[RankEvent] = []
    calibrated: tuple[CalibratedRow, ...] = ()
    trace: Path | None = None
    try:
        async with NetworkChange(
            tools.agents,
            tools.journal,
            proposal.desired,
            lease_seconds=plan.network.lease_seconds,
        ) as change:
            with tools.stage("stage"):
                await change.stage()
            links = await delivered(tools, plan, decision.allocation, change, request.measured)
            await change.commit()
            if not request.network_only:
                if isinstance(decision, Decision):
                    calibrated = await change.while_held(
                        calibrated_paths(request, tools, decision, change)
                    )
                with tools.stage("job"):
                    job = run_job(request, tools, decision, change, events)
                    await change.while_held(job)
                if isinstance(decision, Decision):
                    trace = await merge_traces(plan, decision, show.progress)
            if plan.network.on_exit == "keep":
                await change.keep()
    except (JobFailed, AgentProblem) as failure:
        if not events:  # nothing ran yet
            raise
        failure.report = make_report(
            request, tools, proposal, change.changes, links, calibrated, events, failure
        )
        raise
    report = make_report(
        request, tools, proposal, change.changes, links, calibrated, events, trace=trace
    )
    show.report(report)
    return report


async def end_left_ranks(tools: Tools) -> None:
    """Of a job whose controller is gone: two jobs must not share the servers."""
    if left := await asyncio.to_thread(tools.launcher.left):
        where = ", ".join(f"{rank.server} (pid {rank.pid})" for rank in left)
        tools.show.say(f"ranks of a job whose controller is gone still run; ending them: {where}")
        await asyncio.to_thread(tools.launcher.end_left, left)


async def delivered(
    tools: Tools, plan: Plan, allocation: Allocation, change: NetworkChange, measured: bool
) -> tuple[LinkMeasurement, ...]:
    """What was promised, on a network that is staged. Raises VerificationFailed."""
    if not measured:
        tools.show.say("rates are as the kernel has them, read back; nothing is measured")
        return ()
    with tools.stage("measure"):
        links = await change.while_held(measure_until_sure(tools, plan, allocation))
    require_delivered(links)
    return links


async def measure_until_sure(
    tools: Tools, plan: Plan, allocation: Allocation
) -> tuple[LinkMeasurement, ...]:
    """What is missed is measured again: a passing burst of somebody else's work must not undo a
    good network, while what is really wrong is wrong each time. Raises VerificationFailed at once
    where NICs are on other rails than the plan says."""
    promised = promises(plan, allocation)
    for attempt in range(1, MOST_MEASUREMENTS + 1):
        links = await measure(tools.agents, plan, promised)
        tools.show.links(links)
        if all(link.within_tolerance for link in links):
            break
        await require_as_wired(tools.agents, plan, links)
        if attempt < MOST_MEASUREMENTS:
            tools.show.say(
                f"a promised rate was missed; measuring again, {attempt + 1} of {MOST_MEASUREMENTS}"
            )
    return links


async def calibrated_paths(
    request: Request, tools: Tools, decision: Decision, change: NetworkChange
) -> tuple[CalibratedRow, ...]:
    """Where the plan wants it: what messages pay on the network that was just measured."""
    if not wants_calibration(request.plan, tools.cache):
        return ()
    with tools.stage("calibrate"):
        rows = await calibrate(
            request.plan,
            decision.placement,
            decision.placement_file,
            tools.launcher,
            tools.cache,
            tools.show.progress,
            held_seconds=lambda: change.held_seconds,
        )
    tools.show.calibrated(rows)
    return rows


async def run_job(
    request: Request,
    tools: Tools,
    decision: Decision | TrafficDecision,
    change: NetworkChange,
    events: list[RankEvent],
) -> None:
    """Adds to events what the ranks say, also when the job fails; what they print is logged."""
    from placewire.controller.launch.ranks import SILENCE_SECONDS, run_ranks
    from placewire.controller.records.run_log import run_log

    plan, silence_seconds = request.plan, SILENCE_SECONDS
    specs: Sequence[ProgramSpec]
    if isinstance(decision, Decision):
        specs = rank_specs(plan, decision.placement, decision.placement_file, decision.graph_file)
        silence_seconds = max(silence_seconds, SLOWER_STEPS * decision.placement.step_seconds)
    else:
        assert isinstance(plan.job, TorchrunJob)
        specs = script_specs(plan, plan.job)

    def on_event(event: RankEvent) -> None:
        if isinstance(event, Carried):  # of each server the last says all
            events[:] = [e for e in events if not (type(e) is Carried and e.rank == event.rank)]
        events.append(event)
        tools.show.event(event)

    with run_log(tools.logs, request.plan.name) as log:

        def on_line(rank: int, text: str, is_error: bool) -> None:
            log.write(rank, text)
            if (
                not is_error
            ):  # mostly libraries' warnings: for who looks, and for a failure's report
                tools.show.printed(rank, text)

        await run_ranks(
            tools.launcher,
            specs,
            on_event,
            on_line=on_line,
            silence_seconds=silence_seconds,
            held_seconds=lambda: change.held_seconds,
        )


def make_report(
    request: Request,
    tools: Tools,
    proposal: Proposal,
    changes: dict[str, int],
    links: tuple[LinkMeasurement, ...],
    calibrated: tuple[CalibratedRow, ...],
    events: list[RankEvent],
    failure: PlacewireError | None = None,
    trace: Path | None = None,
) -> RunReport:
    plan, decision = request.plan, proposal.decision
    report = RunReport(
        plan_name=plan.name,
        plan_digest=next(iter(proposal.desired.values())).plan_digest,
        generations={server: state.generation for server, state in proposal.desired.items()},
        changes=changes,
        sharing=decision.allocation.sharing,
        links=links,
        calibrated=calibrated,
        failure=None if failure is None else failure_row(failure),
        network="kept" if plan.network.on_exit == "keep" and not failure else "restored",
        stage_seconds=dict(tools.seconds),
        files={},
    )
    if isinstance(decision, TrafficDecision):
        servers = [server.name for server in plan.cluster.servers]
        rails = rail_rows(plan, events)
        return of_script(report, servers, rails, decision.allocation_file, events)
    files = {"graph": decision.graph_file, "placement": decision.placement_file}
    if trace is not None:
        files["trace"] = trace
    return of_placed(report, decision.placement, decision.compared, files, events)
