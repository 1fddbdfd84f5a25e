"""Captures and profiles a job's step in each number of micro-batches and shards to choose from."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from placewire.controller.decide.measured.optimizer_process import Say
from placewire.controller.decide.measured.profiles import profiled_graph
from placewire.controller.errors import PlacewireError, PlanError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob, ReplayJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.variants import cut_name


@dataclass(frozen=True)
class Variant:
    """job: as ranks would run it. graph_file: the operator graph that ranks are given. scored_file:
    the graph that a placement is found for; it differs for a replay only, whose ranks slow the
    user's graph down themselves."""

    job: PlacedJob | ReplayJob
    graph_file: Path
    scored_file: Path


async def variants_of(
    plan: Plan,
    job: PlacedJob,
    plan_file: Path,
    launcher: Launcher,
    cache: Path,
    say: Say,
    *,
    only_told: bool = False,
) -> list[Variant]:
    """At least one, no two of one structure. What cannot be profiled, for lack of memory perhaps,
    or captured, because an input is no batch, is told and left out, unless nothing else is left.
    Raises what profiled_graph raises, and PlanError where micro-batches would change what is
    trained and the plan asks for no number; only_told: of which `say` gets a line instead."""
    cuts = job.cuts(len(plan.payload_cluster.devices))
    found: dict[str, Variant] = {}
    failed: PlacewireError | None = None
    for cut in cuts:
        one = job.cut_as(cut)
        if len(cuts) > 1:
            say(f"variant: {cut_name(cut.accumulate, cut.shards)}")
        try:
            file = await profiled_graph(plan, one, plan_file, launcher, cache, say)
        except PlacewireError as error:
            # No variant can be captured where the first one, which is cut least, cannot.
            if isinstance(error, PlanError) and cut == cuts[0]:
                raise
            failed = error
            if len(cuts) > 1:
                say(f"left out: {error}")
            continue
        document = await asyncio.to_thread(read_json, file)
        whole = document["notes"].get("whole_batch")
        if whole is not None and job.accumulate == "auto":
            if not only_told:
                raise PlanError(str(plan_file), [("job.accumulate", _needs_a_word(whole))])
            if not found:
                say(f"{whole}: micro-batches, like the replicas of ddp and fsdp, train otherwise")
        found.setdefault(document["structure_hash"], Variant(one, file, file))
    if not found:
        assert failed is not None, "a job has at least one cut"
        raise failed
    return list(found.values())


def _needs_a_word(whole: str) -> str:
    return (
        f"auto is refused, because {whole}: with micro-batches it does so for each of them, which "
        "changes what is trained. Give a number, if you want that, or 1"
    )
