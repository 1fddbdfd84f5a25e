"""The one story: plan in, training job on a proven network out, everything put back.

    decide ─▶ compile ─▶ preview ─▶ stage ─▶ measure ─▶ commit ─▶ job ─▶ keep or restore ─▶ report

No detail lives here. Left of `stage` nothing is touched; from there on every way out of this
function leaves each server on one whole state (controller/change.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agent.contract.job import Finished, RankEvent
from agent.contract.measurement import LinkMeasurement
from agent.contract.messages import Previewed
from agent.contract.state import DesiredState
from controller.bandwidth_check import measure, require_delivered
from controller.change import NetworkChange, preview
from controller.compile import deliverable
from controller.compile.network import compile_network, larger_frames
from controller.compile.ranks import rank_specs
from controller.compile.transfers import promises
from controller.decide import Decision, decide
from controller.errors import (
    AgentProblem,
    AgentRefused,
    JobFailed,
    PlacewireError,
    UsageError,
)
from controller.measured.calibration import calibrate, wants_calibration
from controller.plan import Plan
from controller.previewed import Preview, require_as_previewed
from controller.report import (
    CalibratedRow,
    RunReport,
    failure_row,
    first_step,
    last_checkpoint,
    losses,
    resumed_checkpoint,
    sharing_rows,
    step_times,
    traffic_rows,
    typical_step,
)
from controller.traces import merge_traces

if TYPE_CHECKING:
    from controller.agents import Agents
    from controller.journal import Journal
    from controller.launch.launcher import Launcher
    from controller.show.story import Show
    from optimizer.placement import Placement


# No rank says anything within a step: so many times as long as predicted may one take.
SLOWER_STEPS = 20.0
MOST_MEASUREMENTS = 3


@dataclass(frozen=True)
class Request:
    """network_only: stop after the measurement, without a job. confirm: asked before a change.
    preview: what the change must be exactly, where somebody has looked at it before."""

    plan: Plan
    plan_file: Path
    network_only: bool
    confirm: Callable[[], Awaitable[bool]]
    preview: Preview | None = None


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
    decision: Decision
    desired: dict[str, DesiredState]
    previewed: dict[str, Previewed]


async def propose(request: Request, tools: Tools) -> Proposal:
    """Decide and ask every server what it would change. Touches nothing."""
    plan, show = request.plan, tools.show
    servers = [server.name for server in plan.cluster.servers]
    with tools.stage("agents"):
        await tools.agents.wait_for(servers, timeout_seconds=10)
    with tools.stage("decide"):
        decision = await decide(plan, request.plan_file, tools.launcher, tools.cache, show.progress)
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
            decision.placement,
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


async def apply(request: Request, tools: Tools) -> RunReport:
    """Raises a PlacewireError whose exit code says how far it came; see controller/errors.py."""
    plan, show = request.plan, tools.show
    proposal = await propose(request, tools)
    if request.preview is not None:
        require_as_previewed(request.preview, proposal)
    if not await request.confirm():
        raise UsageError("not confirmed; nothing was changed")
    placement = proposal.decision.placement
    await end_left_ranks(tools)
    events: list[RankEvent] = []
    calibrated: tuple[CalibratedRow, ...] = ()
    try:
        async with NetworkChange(
            tools.agents,
            tools.journal,
            proposal.desired,
            lease_seconds=plan.network.lease_seconds,
        ) as change:
            with tools.stage("stage"):
                await change.stage()
            with tools.stage("measure"):
                links = await change.while_held(measure_until_sure(tools, plan, placement))
            require_delivered(links)
            await change.commit()
            if not request.network_only:
                calibrated = await change.while_held(
                    calibrated_paths(request, tools, proposal.decision, change)
                )
                with tools.stage("job"):
                    job = run_job(request, tools, proposal.decision, change, events)
                    await change.while_held(job)
            if plan.network.on_exit == "keep":
                await change.keep()
    except (JobFailed, AgentProblem) as failure:
        if not events:  # nothing ran yet
            raise
        failure.report = make_report(
            request, tools, proposal, change.changes, links, calibrated, events, failure
        )
        raise
    trace = await merge_traces(plan, proposal.decision, show.progress) if events else None
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


async def measure_until_sure(
    tools: Tools, plan: Plan, placement: Placement
) -> tuple[LinkMeasurement, ...]:
    """What is missed is measured again: a passing burst of somebody else's work must not undo a
    good network, while what is really wrong is wrong each time."""
    promised = promises(plan, placement)
    for attempt in range(1, MOST_MEASUREMENTS + 1):
        links = await measure(tools.agents, plan, promised)
        tools.show.links(links)
        if all(link.within_tolerance for link in links):
            break
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
    decision: Decision,
    change: NetworkChange,
    events: list[RankEvent],
) -> None:
    """Adds to events what the ranks say, also when the job fails; what they print is logged."""
    from controller.launch.ranks import SILENCE_SECONDS, run_ranks
    from controller.run_log import run_log

    specs = rank_specs(
        request.plan, decision.placement, decision.placement_file, decision.graph_file
    )

    def on_event(event: RankEvent) -> None:
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
            silence_seconds=max(SILENCE_SECONDS, SLOWER_STEPS * decision.placement.step_seconds),
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
    placement, steps = decision.placement, step_times(events)
    files = {"graph": decision.graph_file, "placement": decision.placement_file, "trace": trace}
    return RunReport(
        plan_name=plan.name,
        plan_digest=next(iter(proposal.desired.values())).plan_digest,
        generations={server: state.generation for server, state in proposal.desired.items()},
        changes=changes,
        engine=placement.engine,
        sharing=placement.sharing,
        operators=len(placement.operators),
        devices=placement.devices_used,
        server_pairs=tuple(sorted(placement.server_pairs)),
        considered=sharing_rows(decision.compared, placement),
        predicted_step_seconds=placement.step_seconds,
        bound_seconds=placement.bound_seconds,
        gap=placement.gap,
        single_device_seconds=placement.single_device_seconds,
        links=links,
        calibrated=calibrated,
        step_seconds=steps,
        measured_step_seconds=typical_step(steps),
        losses=losses(events),
        first_step=first_step(events),
        resumed=resumed_checkpoint(events),
        checkpoint=last_checkpoint(events),
        failure=None if failure is None else failure_row(failure),
        traffic=traffic_rows(placement, events, len(steps)) if steps and not failure else (),
        peak_memory_bytes={
            placement.devices_used[e.rank]: e.peak_memory_bytes
            for e in events
            if isinstance(e, Finished)
        },
        network="kept" if plan.network.on_exit == "keep" and not failure else "restored",
        stage_seconds=dict(tools.seconds),
        files={name: str(file) for name, file in files.items() if file is not None},
    )
