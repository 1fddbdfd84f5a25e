"""Runs the job on the verified network: calibrates paths, runs ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from placewire.controller.change.change import NetworkChange
from placewire.controller.compile.ranks import rank_specs
from placewire.controller.compile.scripts import script_specs
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.measured.calibration import calibrate, wants_calibration
from placewire.controller.decide.traffic import TrafficDecision
from placewire.controller.launch.ranks import SILENCE_SECONDS, START_SECONDS, run_ranks
from placewire.controller.metrics.run_facts import facts_of
from placewire.controller.plan.job import PlacedJob, TorchrunJob
from placewire.controller.records.job_record import JobRecord
from placewire.controller.records.joined_steps import Steps
from placewire.controller.records.report import CalibratedRow
from placewire.controller.records.run_log import LONGEST_BYTES, run_log
from placewire.controller.story.tools import ApplyRequest, Tools
from placewire.controller.verify.nic_use import NicWatch
from placewire.job.contract.specification import ProgramSpec, RankEvent, StepDone

# Placed ranks print no step themselves. The log has each once, when all ranks ended it.
_STEPS_RANK = 0
# Ranks are silent within a step; one may take so many times as long as predicted.
SLOWER_STEPS = 20.0
# The ranks that wait for one give it up before it is given up here: they know what it does.
_AFTER_RANKS_SECONDS = 60.0


async def calibrated_paths(
    request: ApplyRequest, tools: Tools, decision: PlacementDecision, change: NetworkChange
) -> tuple[CalibratedRow, ...]:
    """Measures, where the plan asks for it, what messages cost on the network."""
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
    request: ApplyRequest,
    tools: Tools,
    decision: PlacementDecision | TrafficDecision,
    change: NetworkChange,
    told: JobRecord,
    nics: NicWatch,
) -> None:
    """Adds what ranks tell to `told`, also when the job fails; logs steps and what ranks print.
    nics: watches the NICs meanwhile."""
    plan, silence_seconds, start_seconds = request.plan, SILENCE_SECONDS, START_SECONDS
    specs: Sequence[ProgramSpec]
    buckets: list[str] = []
    if isinstance(decision, PlacementDecision):
        plan = plan.model_copy(update={"job": decision.variant.job})
        specs = rank_specs(
            plan,
            decision.placement,
            decision.placement_file,
            decision.graph_file,
            decision.other_bucket_files,
        )
        silence_seconds = max(silence_seconds, SLOWER_STEPS * decision.longest_step_seconds)
        buckets = [one.name for one in decision.buckets]
        if isinstance(plan.job, PlacedJob):
            start_seconds = plan.job.start_limit_seconds + _AFTER_RANKS_SECONDS
    else:
        assert isinstance(plan.job, TorchrunJob)
        specs = script_specs(plan, plan.job)
    told.begin(len(specs), buckets)

    with run_log(tools.logs, plan.name) as log:
        facts = facts_of(log.path.stem, plan, decision, time.time())
        tools.run.begin(facts, nics.sent_bytes)

        steps = Steps(len(specs))

        def on_event(event: RankEvent) -> None:
            if isinstance(event, StepDone) and (step := steps.ended(event)) is not None:
                nics.step_ended(step.number)
                log.write(_STEPS_RANK, str(step))
            told.add(event)
            tools.run.event(event)
            tools.show.event(event)

        def on_line(rank: int, text: str, is_error: bool) -> None:
            log.write(rank, text)
            if not is_error:  # mostly warnings of libraries: for the log, and a failure's report
                tools.show.printed(rank, text)

        watching = asyncio.create_task(nics.watch())
        try:
            await run_ranks(
                tools.launcher,
                specs,
                on_event,
                on_line=on_line,
                on_late=tools.show.say,
                on_gone=tools.run.rank_gone,
                silence_seconds=silence_seconds,
                start_seconds=start_seconds,
                held_seconds=lambda: change.held_seconds,
            )
        finally:
            tools.run.end_job()
            watching.cancel()
            # Whatever became of watching, it changes nothing of how the job ended.
            await asyncio.gather(watching, return_exceptions=True)
            if log.left_out_bytes:
                tools.notes.append(
                    f"the log of ranks and steps is larger than {LONGEST_BYTES / 2**20:g} MiB: "
                    f"{log.left_out_bytes} bytes are left out in the middle of {log.path}"
                )
