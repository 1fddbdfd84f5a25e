"""Decides on the placements of other buckets: batches of other shapes than the first bucket's.

Each is captured and profiled like the first, in the cut that was taken for it, and is placed beside
the first one's placement: parameters stay where they are, and so do rates of pairs of servers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placewire.controller.decide.cached_file import is_whole, made_by_one, written
from placewire.controller.decide.measured.digests import digest, optimizer_digest
from placewire.controller.decide.measured.optimizer_process import (
    OPTIMIZER_PROGRAM,
    Say,
    run_relayed,
)
from placewire.controller.decide.measured.profiles import profiled_graph
from placewire.controller.errors import InfeasiblePlacement, PlanError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.placement import Placement, load_placement, save_placement

# The part of the time limit that all other buckets have together.
OTHERS_PART = 0.5


@dataclass(frozen=True)
class PlacedBucket:
    """share: the part of the job's steps whose batch is of this bucket, counted over some."""

    name: str
    share: float
    graph_file: Path
    placement_file: Path
    placement: Placement


def bucket_names(graph_file: Path) -> list[str]:
    """The first bucket's first; [] of a model without buckets. graph_file: of the first one."""
    return list(_notes(graph_file).get("buckets", ()))


def _notes(graph_file: Path) -> Mapping[str, Any]:
    """They were checked when the file was made, and a large graph takes long to load."""
    notes: Mapping[str, Any] = read_json(graph_file).get("notes", {})
    return notes


def refuse_with_buckets(job: PlacedJob, plan_file: Path) -> None:
    """Raises PlanError for what a job with buckets cannot do."""
    if job.trace is not None:
        what = (
            f"the batches of {job.model} have several shapes (buckets), and the steps of a trace "
            "are of one; leave it out"
        )
        raise PlanError(str(plan_file), [("job.trace", what)])


async def placed_buckets(
    plan: Plan,
    job: PlacedJob,
    first: PlacedBucket,
    others: Sequence[str],
    limit_seconds: float,
    plan_file: Path,
    launcher: Launcher,
    cache: Path,
    say: Say,
) -> tuple[PlacedBucket, ...]:
    """All buckets with their shares, the first one first, whose placement knows of all that others
    send. first: without its share. limit_seconds: for all searches together. Raises
    InfeasiblePlacement where a bucket has no placement beside the first, and what profiled_graph
    raises."""
    found: list[PlacedBucket] = []
    shares: Mapping[str, float] = {}
    for name in others:
        try:
            graph = await profiled_graph(plan, job, plan_file, launcher, cache, say, bucket=name)
        except PlanError as error:
            raise _of_bucket(name, plan, job, plan_file, error) from error
        await asyncio.to_thread(_require_same_training, name, graph, plan, job, plan_file)
        shares = shares or await asyncio.to_thread(_shares, graph)
        if shares.keys() != {first.name, *others}:
            counted = ", ".join(map(repr, shares)) or "none"
            what = f"its profile for bucket {name!r} counted the steps of other buckets: {counted}"
            raise PlanError(str(plan_file), [("job.model", what)])
        limit = limit_seconds / len(others)
        say(f"solve: bucket {name} beside {first.name}, at most {limit:g} s")
        try:
            file = await _beside(plan, graph, first.placement_file, limit, cache, say)
        except InfeasiblePlacement as error:
            raise InfeasiblePlacement(
                f"bucket {name!r} has no placement with the parameters where bucket {first.name!r} "
                f"has them: {error.what}",
                remedy="let example_inputs be of the largest bucket",
            ) from error
        found.append(PlacedBucket(name, shares[name], graph, file, load_placement(file)))
    return replace(_with_talks_of(first, found, cache), share=shares[first.name]), *found


def _of_bucket(
    name: str, plan: Plan, job: PlacedJob, plan_file: Path, error: PlanError
) -> PlanError:
    """The error, said of that bucket; the first one's cut may be what it cannot have."""
    cut = _decided_cut(plan, job)
    hint = f"; the step is cut as suits the first bucket: {cut} leaves it whole" if cut else ""
    mistakes = [(where, f"bucket {name!r}: {what}{hint}") for where, what in error.mistakes]
    return PlanError(str(plan_file), mistakes)


def _decided_cut(plan: Plan, job: PlacedJob) -> str:
    """The keys that would undo what was decided, as a plan has them; empty where nothing was."""
    asked = plan.job
    assert isinstance(asked, PlacedJob), "only a captured step has buckets"
    return " and ".join(
        f"job.{key}: 1"
        for key in ("accumulate", "shards")
        if getattr(asked, key) == "auto" and getattr(job, key) != 1
    )


def _require_same_training(
    name: str, graph_file: Path, plan: Plan, job: PlacedJob, plan_file: Path
) -> None:
    """Raises PlanError where the cut, which nobody asked for, would train this bucket otherwise."""
    whole, cut = _notes(graph_file).get("whole_batch"), _decided_cut(plan, job)
    if whole is not None and "accumulate" in cut:
        what = (
            f"micro-batches, as suit the first bucket, would train bucket {name!r} otherwise: "
            f"{whole}; give 1, or a number if you want that"
        )
        raise PlanError(str(plan_file), [("job.accumulate", what)])


def _shares(graph_file: Path) -> Mapping[str, float]:
    """By bucket the part of the job's steps."""
    shares: Mapping[str, float] = _notes(graph_file).get("bucket_shares", {})
    return shares


def _with_talks_of(
    first: PlacedBucket, others: Sequence[PlacedBucket], cache: Path
) -> PlacedBucket:
    """The first bucket, for whose job the network also carries what the others send between other
    servers, or on other rails, than it."""
    talks = frozenset().union(*(one.placement.talks for one in others))
    more = talks - first.placement.talks
    if not more:
        return first
    placement = first.placement.with_other_talks(more)
    file = cache / f"placement-{digest([first.placement_file.name, sorted(more)])}.json"
    if not is_whole(file, load_placement):
        with written(file):
            save_placement(placement, file)
    return replace(first, placement=placement, placement_file=file)


async def _beside(
    plan: Plan, graph: Path, first: Path, limit_seconds: float, cache: Path, say: Say
) -> Path:
    contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (graph, first)]
    question = [contents, plan.solve.model_dump(), limit_seconds, optimizer_digest()]
    file = cache / f"placement-beside-{digest(question)}.json"
    async with made_by_one(file, lambda: say("solve: another command is at it")):
        if not is_whole(file, load_placement):
            staged = file.with_name("staged-" + file.name)
            words = [
                *OPTIMIZER_PROGRAM, "beside", str(graph), str(first),
                "--gap", str(plan.solve.gap), "--time-limit", str(limit_seconds),
                "--seed", str(plan.solve.seed), "--out", str(staged),
            ]  # fmt: skip
            await run_relayed(words, say)
            with written(file):
                staged.replace(file)
    return file


def mean_seconds(buckets: Sequence[PlacedBucket]) -> float:
    """The predicted step, each bucket weighted by its share."""
    return sum(one.placement.step_seconds * one.share for one in buckets)
