"""Applies a plan: decides on it, shapes and measures the network, runs the job, restores.

    decide ─▶ compile ─▶ preview ─▶ stage ─▶ measure ─▶ commit ─▶ job ─▶ keep or restore ─▶ report

The details of each stage are elsewhere. No server is touched before `stage`; however `apply` ends
after that, each server is left on one whole state (controller/change/change.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.agent.contract.state import Change
from placewire.controller.change.change import NetworkChange, preview
from placewire.controller.compile.transfers import promises
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.traces import merge_traces
from placewire.controller.decide.traffic import TrafficDecision
from placewire.controller.errors import RestoreFailed, UsageError
from placewire.controller.plan.plan import Plan
from placewire.controller.records.job_record import JobRecord
from placewire.controller.records.program import program_of
from placewire.controller.records.report import (
    NOT_AS_BEFORE,
    CalibratedRow,
    NetworkAfter,
    RunReport,
    failure_row,
    of_placed,
    of_script,
)
from placewire.controller.story.delivery import delivered
from placewire.controller.story.held import left_otherwise
from placewire.controller.story.job_run import calibrated_paths, run_job
from placewire.controller.story.left_ranks import end_left_ranks
from placewire.controller.story.preview_file import (
    require_as_previewed,
    require_made_as_previewed,
)
from placewire.controller.story.proposal import Proposal
from placewire.controller.story.propose import propose
from placewire.controller.story.tools import ApplyRequest, Tools
from placewire.controller.uninterruptible import uninterruptible
from placewire.controller.verify.nic_use import NicWatch
from placewire.controller.verify.rail_use import rail_rows


async def apply(
    request: ApplyRequest, tools: Tools, keep: Callable[[RunReport], None]
) -> RunReport:
    """Raises a PlacewireError whose exit code says what went wrong; see controller/errors.py.
    keep: given the report of every run in which a rank ran, however the run or its network ended.
    """
    plan, show = request.plan, tools.show
    proposal = await propose(request, tools)
    if request.preview is not None:
        require_as_previewed(request.preview, proposal)
    # A rate that cannot be promised ends the apply here, before any server is touched.
    promised = promises(plan, proposal.decision.allocation) if request.measured else None
    if not await request.confirm():
        raise UsageError("not confirmed; nothing was changed")
    decision = proposal.decision
    await end_left_ranks(plan.name, tools, for_job=not request.network_only)
    told = JobRecord()
    calibrated: tuple[CalibratedRow, ...] = ()
    trace: Path | None = None
    nics = NicWatch(tools.agents, plan)
    try:
        async with NetworkChange(
            tools.agents, tools.journal, proposal.desired, lease_seconds=plan.network.lease_seconds
        ) as change:
            with tools.stage("stage"):
                await _stage(change, request, tools, proposal)
            links = await delivered(tools, plan, promised, change)
            await change.commit()
            if not request.network_only:
                if isinstance(decision, PlacementDecision):
                    paths = calibrated_paths(request, tools, decision, change)
                    calibrated = await change.while_held(paths)
                with tools.stage("job"):
                    job = run_job(request, tools, decision, change, told, nics)
                    await change.while_held(job)
                if isinstance(decision, PlacementDecision):
                    trace = await merge_traces(plan, decision, tools.launcher, show.progress)
            if plan.network.on_exit == "keep":
                await change.keep()
    except BaseException as failure:
        try:
            await uninterruptible(_note_what_is_otherwise(tools, list(change.made)))
            if told.has_begun:
                report = make_report(
                    request, tools, proposal, change.made, links, calibrated, told, nics, failure,
                    trace,
                )  # fmt: skip
                keep(report)
                show.failed(report)
            else:  # No rank ran yet: there is nothing to report.
                show.notes(tools.notes)
        except Exception as defect:  # What the run ended with must be told all the same.
            show.say(f"the run's report is not whole: {type(defect).__name__}: {defect}")
        raise
    await _note_what_is_otherwise(tools, list(change.made))
    report = make_report(
        request, tools, proposal, change.made, links, calibrated, told, nics, trace=trace
    )
    keep(report)
    show.report(report)
    return report


async def _stage(
    change: NetworkChange, request: ApplyRequest, tools: Tools, proposal: Proposal
) -> None:
    """Raises StalePreview where a preview was given and a server changed since it was compared,
    which may be long ago: somebody was asked to confirm."""
    if request.preview is None:
        await change.stage()
        return
    now = await preview(tools.agents, proposal.desired)
    require_as_previewed(request.preview, replace(proposal, previewed=now))
    await change.stage()
    require_made_as_previewed(request.preview, change.made)


async def _note_what_is_otherwise(tools: Tools, servers: list[str]) -> None:
    found = await left_otherwise(tools.agents, servers)
    tools.notes.extend(f"{NOT_AS_BEFORE}{server}: {what}" for server, what in found.items())


def make_report(
    request: ApplyRequest,
    tools: Tools,
    proposal: Proposal,
    made: Mapping[str, Sequence[Change]],
    links: tuple[LinkMeasurement, ...],
    calibrated: tuple[CalibratedRow, ...],
    told: JobRecord,
    nics: NicWatch,
    failure: BaseException | None = None,
    trace: Path | None = None,
) -> RunReport:
    plan, decision = request.plan, proposal.decision
    report = RunReport(
        plan_name=plan.name,
        plan_digest=next(iter(proposal.desired.values())).plan_digest,
        ended_unix_seconds=time.time(),
        program=None if request.network_only else program_of(plan.job),
        generations={server: state.generation for server, state in proposal.desired.items()},
        changes={server: len(changes) for server, changes in made.items()},
        changed={server: _counted(changes) for server, changes in made.items()},
        sharing=decision.allocation.sharing,
        links=links,
        calibrated=calibrated,
        failure=None if failure is None else failure_row(failure),
        network=_network_after(plan, failure),
        stage_seconds=dict(tools.seconds),
        files={},
        nic_use=nics.use(),
        notes=tuple(tools.notes),
    )
    if isinstance(decision, TrafficDecision):
        servers = [server.name for server in plan.cluster.servers]
        rails = rail_rows(plan, told.carried)
        return of_script(report, servers, rails, decision.allocation_file, told)
    files = {"graph": decision.graph_file, "placement": decision.placement_file}
    if decision.scored_file != decision.graph_file:
        files["scored_graph"] = decision.scored_file
    if trace is not None:
        files["trace"] = trace
    placed = {one.name: one.placement for one in decision.buckets}
    shares = {one.name: one.share for one in decision.buckets}
    for one in decision.buckets[1:]:
        files |= {
            f"graph of bucket {one.name}": one.graph_file,
            f"placement of bucket {one.name}": one.placement_file,
        }
    return of_placed(report, decision.placement, decision.compared, files, told, placed, shares)


def _counted(changes: Sequence[Change]) -> dict[str, int]:
    return dict(Counter(f"{change.action} {change.collection}" for change in changes))


def _network_after(plan: Plan, failure: BaseException | None) -> NetworkAfter:
    if failure is None:
        return "kept" if plan.network.on_exit == "keep" else "restored"
    return "not restored" if isinstance(failure, RestoreFailed) else "restored"
