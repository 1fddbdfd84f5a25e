"""Captures and profiles a job's step in each number of micro-batches and shards to choose from.

Where there are several, each is measured quickly, and the one that is taken is measured again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from placewire.controller.decide.measured.optimizer_process import Say
from placewire.controller.decide.measured.profiles import profiled_graph
from placewire.controller.errors import Occupied, PlacewireError, PlanError
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
    compared: bool = False,
) -> list[Variant]:
    """At least one, no two of one structure. What cannot be profiled, for lack of memory perhaps,
    or captured, because an input is no batch, is told and left out, unless nothing else is left.
    Where micro-batches would change what is trained, and the plan asks for no number, `say` gets a
    line, and the step stays whole; compared: it is cut all the same. Raises what profiled_graph
    raises, Occupied for any variant."""
    cuts = job.cuts(len(plan.payload_cluster.devices))
    found: dict[str, Variant] = {}
    failed: PlacewireError | None = None
    for cut in cuts:
        one = job.cut_as(cut)
        quickly = len(cuts) > 1
        if len(cuts) > 1:
            say(f"variant: {cut_name(cut.accumulate, cut.shards)}")
        try:
            file = await profiled_graph(plan, one, plan_file, launcher, cache, say, quickly=quickly)
        except Occupied:
            raise  # Which variants there are must not depend on who else is measuring now.
        except PlacewireError as error:
            # No variant can be captured where the first one, which is cut least, cannot.
            if isinstance(error, PlanError) and cut == cuts[0]:
                raise
            failed = error
            if len(cuts) > 1:
                say(f"left out: {error}")
            continue
        document = await asyncio.to_thread(read_json, file)
        if job.validation is not None and not document["notes"].get("validation"):
            raise PlanError(
                str(plan_file),
                [
                    (
                        "job.validation",
                        f"{job.model} has no validation batches: give its TrainingStep "
                        "`validation`, or leave this out",
                    )
                ],
            )
        whole = document["notes"].get("whole_batch")
        is_first = not found
        if whole is not None and job.accumulate == "auto" and not compared and one.accumulate != 1:
            break  # Uncut it failed.
        found.setdefault(document["structure_hash"], Variant(one, file, file))
        if whole is None or job.accumulate != "auto" or not is_first:
            continue
        if not compared:
            say(
                f"the step is not cut into micro-batches, which would change what is trained: "
                f"{whole}. Give job.accumulate a number, if you want that"
            )
            break
        say(f"{whole}: micro-batches, like the replicas of ddp and fsdp, train otherwise")
    if not found:
        assert failed is not None, "each cut was profiled or failed"
        raise failed
    return list(found.values())
