"""Captures and profiles a job's step in each number of micro-batches and shards to choose from, and
with layers computed again where a device cannot hold it.

Where there are several, each is measured quickly, and the one that is taken is measured again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.controller.decide.measured.optimizer_process import Say
from placewire.controller.decide.measured.profiles import profiled_graph
from placewire.controller.errors import Occupied, OutOfMemory, PlacewireError, PlanError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob, ReplayJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.variants import cut_name


@dataclass(frozen=True)
class Variant:
    """job: as ranks would run it. graph_file: the operator graph that ranks are given. scored_file:
    the graph that a placement is found for; it differs for a replay only, whose ranks slow the
    user's graph down themselves. quickly: whether it was measured with few samples."""

    job: PlacedJob | ReplayJob
    graph_file: Path
    scored_file: Path
    quickly: bool = False


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
    Where a device of the cluster has no memory for the whole step, and the plan does not say which
    layers are recomputed, half of them and all are tried, too.
    Where micro-batches would change what is trained, and the plan asks for no number, `say` gets a
    line, and the step stays whole; compared: it is cut all the same. Raises what profiled_graph
    raises, Occupied for any variant."""
    left = deque(job.cut_as(cut) for cut in job.cuts(len(plan.payload_cluster.devices)))
    first, several = left[0], len(left) > 1
    least_memory = min(device.memory_bytes for device in plan.payload_cluster.devices)
    found: dict[str, Variant] = {}
    failed: PlacewireError | None = None
    has_layers = True
    while left:
        one = left.popleft()
        is_added = job.recompute == "auto" and one.recompute != "none"
        quickly = several or is_added
        if quickly:
            say(f"variant: {cut_name(int(one.accumulate), int(one.shards), one.recompute)}")
        try:
            file = await profiled_graph(plan, one, plan_file, launcher, cache, say, quickly=quickly)
        except Occupied:
            raise  # Which variants there are must not depend on who else is measuring now.
        except PlacewireError as error:
            # No variant can be captured where the first one, which is cut least, cannot.
            if isinstance(error, PlanError) and one == first:
                raise
            failed = failed if is_added else error
            if isinstance(error, PlanError) and is_added:
                has_layers = False
                left = deque(other for other in left if other.recompute == "none")
                say(f"layers are not computed again: {error.mistakes[0][1]}")
                continue
            if isinstance(error, OutOfMemory) and has_layers:
                left.extendleft(_recomputed(job, one))
            if quickly or left:
                say(f"left out: {error}")
            continue
        document = await asyncio.to_thread(read_json, file)
        notes = document["notes"]
        _require_validation(job, notes, plan_file)
        whole = notes.get("whole_batch")
        is_first = not found
        if whole is not None and job.accumulate == "auto" and not compared and one.accumulate != 1:
            break  # Uncut it failed.
        found.setdefault(document["structure_hash"], Variant(one, file, file, quickly))
        if has_layers and notes.get("one_device_bytes", 0) > least_memory:
            left.extendleft(_recomputed(job, one))
        if whole is None or job.accumulate != "auto" or not is_first:
            continue
        say(_about(whole, compared))
        left = deque(other for other in left if compared or other.accumulate == 1)
    if not found:
        assert failed is not None, "each cut was profiled or failed"
        raise failed
    return list(found.values())


def _about(whole: str, compared: bool) -> str:
    if compared:
        return f"{whole}: micro-batches, like the replicas of ddp and fsdp, train otherwise"
    return (
        f"the step is not cut into micro-batches, which would change what is trained: {whole}. "
        "Give job.accumulate a number, if you want that"
    )


def _recomputed(job: PlacedJob, one: PlacedJob) -> list[PlacedJob]:
    """The same with layers computed again, where that is to be decided; the last is tried first."""
    if job.recompute != "auto" or one.recompute != "none":
        return []
    return [one.model_copy(update={"recompute": which}) for which in ("all", "half")]


def _require_validation(job: PlacedJob, notes: Mapping[str, Any], plan_file: Path) -> None:
    if job.validation is not None and not notes.get("validation"):
        what = f"{job.model} has no validation batches: give its TrainingStep `validation`"
        raise PlanError(str(plan_file), [("job.validation", f"{what}, or leave this out")])
