"""Decides on a placement for a plan: captures and profiles its model, or reads a graph, and solves.

Capture and profile run on the servers (measured/profiles.py), and solving runs in a process of its
own: so the controller never imports the user's model, an interrupt ends them at once, and the
controller stays small. Every result is cached, and used again only while everything that it was
made from is the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from placewire.controller.decide.buckets import (
    OTHERS_PART,
    PlacedBucket,
    bucket_names,
    mean_seconds,
    placed_buckets,
    refuse_with_buckets,
)
from placewire.controller.decide.cached_file import (
    is_whole,
    made_by_one,
    make_cache,
    write_cached,
    written,
)
from placewire.controller.decide.measured.calibration import with_measured
from placewire.controller.decide.measured.digests import digest, optimizer_digest
from placewire.controller.decide.measured.optimizer_process import (
    OPTIMIZER_PROGRAM,
    Say,
    run_relayed,
)
from placewire.controller.decide.measured.profiles import profiled_graph
from placewire.controller.decide.variants import Variant, variants_of
from placewire.controller.errors import PlanError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob, ReplayJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.chunks import with_windows
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.graph.variants import cut_name
from placewire.optimizer.names import WITHOUT_SHAPING, SharingName
from placewire.optimizer.network.sharings import part_of_bound
from placewire.optimizer.placement import Placement, load_placement
from placewire.optimizer.placement import Variant as ComparedVariant

# The part of the time limit that the choice of a variant takes, where there are several, and the
# sharing that they are compared under where several are tried.
_CHOICE_PART = 0.5
_SHARING_OF_THE_CHOICE: SharingName = "job"
# The part of the time limit under `sharing: auto` that the comparison with one rail takes.
_ONE_NIC_PART = 0.15


@dataclass(frozen=True)
class PlacementDecision:
    """considered: a placement per sharing that was tried. placement: the one of them with the
    shortest predicted step. one_rail: the best placement over a single rail, unshaped, for
    comparison.

    variant: of the step, which the placement is of. buckets: where batches have several shapes, all
    of them, first the one that placement is of; else empty.
    """

    variant: Variant
    placement_file: Path
    placement: Placement
    considered: tuple[Placement, ...]
    one_rail: Placement | None = None
    buckets: tuple[PlacedBucket, ...] = ()

    @property
    def graph_file(self) -> Path:
        return self.variant.graph_file

    @property
    def scored_file(self) -> Path:
        return self.variant.scored_file

    @property
    def allocation(self) -> Placement:
        return self.placement

    @property
    def predicted_step_seconds(self) -> float:
        """Over all buckets, weighted by how often each is expected."""
        return mean_seconds(self.buckets) if self.buckets else self.placement.step_seconds

    @property
    def longest_step_seconds(self) -> float:
        """As predicted, of any bucket."""
        others = [one.placement.step_seconds for one in self.buckets]
        return max([self.placement.step_seconds, *others])

    @property
    def other_bucket_files(self) -> Mapping[str, Path]:
        """By name the placements' files of the buckets after the first."""
        return {one.name: one.placement_file for one in self.buckets[1:]}

    @property
    def compared(self) -> tuple[Placement, ...]:
        """All placements that were searched for; the one over a single rail is last."""
        return self.considered if self.one_rail is None else (*self.considered, self.one_rail)

    @property
    def graph_notes(self) -> Mapping[str, Any]:
        """What capture noted in the graph's file, such as loss and inputs. Reads the file."""
        notes: Mapping[str, Any] = read_json(self.graph_file)["notes"]
        return notes


async def decide(
    plan: Plan, plan_file: Path, launcher: Launcher, cache: Path, say: Say
) -> PlacementDecision:
    """launcher: starts the programs that measure a placed job's operators. Raises
    InfeasiblePlacement where no placement fits, PlanError where a replay's graph cannot be read,
    and what profiled_graph raises."""
    make_cache(cache)
    plan = with_measured(plan, cache, say)
    cluster, limit, job = plan.payload_cluster, plan.solve.time_limit_seconds, plan.job
    if isinstance(job, ReplayJob):
        chosen = _Chosen(await asyncio.to_thread(_replayed, job, plan_file, cache))
        cluster = slowed(cluster, job.time_scale)
    else:
        assert isinstance(job, PlacedJob), "a script is not placed"
        chosen = await _chosen(plan, job, plan_file, launcher, cache, say)
    if chosen.start is not None:
        limit *= 1 - _CHOICE_PART
    taken = chosen.variant.job
    names = await asyncio.to_thread(bucket_names, chosen.variant.graph_file)
    if not isinstance(taken, PlacedJob) or len(names) < 2:  # A replay is of one graph.
        return await _decided(plan, chosen, cluster, limit, cache, say)
    refuse_with_buckets(taken, plan_file)
    for_others = limit * OTHERS_PART
    first = await _decided(plan, chosen, cluster, limit - for_others, cache, say)
    own = PlacedBucket(names[0], 0.0, first.graph_file, first.placement_file, first.placement)
    buckets = await placed_buckets(
        plan, taken, own, names[1:], for_others, plan_file, launcher, cache, say
    )
    return replace(
        first,
        placement=buckets[0].placement,
        placement_file=buckets[0].placement_file,
        considered=tuple(
            buckets[0].placement if one is first.placement else one for one in first.considered
        ),
        buckets=buckets,
    )


async def _decided(
    plan: Plan, chosen: _Chosen, cluster: Cluster, limit: float, cache: Path, say: Say
) -> PlacementDecision:
    """For the first bucket, where there are several."""
    variant = chosen.variant
    scored = [variant.scored_file]
    if plan.network.sharing != "auto":
        sharing = plan.network.sharing
        file = await _solve(plan, scored, cluster, sharing, limit, cache, say, chosen.start)
        placement = chosen.noted(load_placement(file), cluster)
        return PlacementDecision(variant, file, placement, (placement,))
    alone = _over_one_rail(cluster) if plan.solve.engine != "single" else None
    searched = limit if alone is None else limit * (1 - _ONE_NIC_PART)
    file = await _solve(plan, scored, cluster, "auto", searched, cache, say, chosen.start)
    each = [_each_folder(file) / f"{sharing}.json" for sharing in get_args(SharingName)]
    considered = tuple(
        chosen.noted(load_placement(one), cluster) for one in each if is_whole(one, load_placement)
    )
    found = load_placement(file)
    placement = next(
        (one for one in considered if one.sharing == found.sharing), chosen.noted(found, cluster)
    )
    compared = None
    if alone is not None:
        limit -= searched
        one_rail = await _solve(plan, scored, alone, WITHOUT_SHAPING, limit, cache, say)
        compared = load_placement(one_rail)
    return PlacementDecision(variant, file, placement, considered, compared)


@dataclass(frozen=True)
class _Chosen:
    """variant: profiled well. start: the file of a placement of it with which the search may begin;
    compared: all variants, as that placement has them; under: its sharing."""

    variant: Variant
    start: Path | None = None
    compared: tuple[ComparedVariant, ...] = ()
    under: SharingName = _SHARING_OF_THE_CHOICE

    def noted(self, placement: Placement, cluster: Cluster) -> Placement:
        part = part_of_bound(cluster, placement.floor, self.under, placement.sharing)
        return placement.with_variants(self.compared, part)


async def _chosen(
    plan: Plan, job: PlacedJob, plan_file: Path, launcher: Launcher, cache: Path, say: Say
) -> _Chosen:
    """Takes the one of several variants whose placement is shortest. All are profiled quickly, and
    the taken one is profiled well."""
    cluster = plan.payload_cluster
    variants = await variants_of(plan, job, plan_file, launcher, cache, say)
    taken, start = variants[0], None
    compared: tuple[ComparedVariant, ...] = ()
    asked = plan.network.sharing
    under = _SHARING_OF_THE_CHOICE if asked == "auto" else asked
    if len(variants) > 1:
        start = await _solve(
            plan,
            [variant.scored_file for variant in variants],
            cluster,
            under,
            plan.solve.time_limit_seconds * _CHOICE_PART,
            cache,
            say,
        )
        first = load_placement(start)
        taken, compared = await _taken(variants, first), first.variants
    if taken.quickly:
        assert isinstance(taken.job, PlacedJob), "a variant of a placed job"
        one = taken.job
        cut = cut_name(int(one.accumulate), int(one.shards), one.recompute)
        say(f"taken: {cut}; its profile has more samples")
        file = await profiled_graph(plan, taken.job, plan_file, launcher, cache, say)
        taken = Variant(taken.job, file, file)
    return _Chosen(taken, start, compared, under)


async def _taken(variants: list[Variant], placement: Placement) -> Variant:
    """The variant that the placement is of."""
    for variant in variants:
        document = await asyncio.to_thread(read_json, variant.scored_file)
        if document["structure_hash"] == placement.structure_hash:
            return variant
    raise AssertionError("the placement is of none of the graphs that were given")


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """The cluster that a replay emulates: messages take this many times longer to be set up, and to
    travel inside a server. The NICs' rates do not change; they stand for NICs so many times faster,
    and hand over as much at a time as these."""
    return with_windows(cluster, factor).model_copy(
        update={
            "setup_latency_seconds": cluster.setup_latency_seconds * factor,
            "intra_server_bits_per_second": cluster.intra_server_bits_per_second / factor,
        }
    )


def _over_one_rail(cluster: Cluster) -> Cluster | None:
    """The same servers with only their fastest rail; None where there is only one rail."""
    if len(cluster.rails) < 2:
        return None
    total = cluster.nic_rates.sum(axis=0).tolist()
    rail = cluster.rails[total.index(max(total))]
    servers = tuple(
        server.model_copy(update={"nics": tuple(nic for nic in server.nics if nic.rail == rail)})
        for server in cluster.servers
    )
    return cluster.model_copy(update={"servers": servers})


def _replayed(job: ReplayJob, plan_file: Path, cache: Path) -> Variant:
    """The user's graph, and that graph with its operators slowed by time_scale."""
    roots = [Path.cwd(), plan_file.resolve().parent]
    path = next(root / job.graph for root in roots if (root / job.graph).is_file())
    try:
        graph = load_graph(path)
    except (GraphError, ValueError) as error:
        raise PlanError(str(plan_file), [("job.graph", str(error))]) from error
    slowed = graph.with_seconds(
        {t: graph.seconds[:, k] * job.time_scale for k, t in enumerate(graph.device_types)}
    )
    file = cache / f"replay-{digest([slowed.structure_hash, slowed.profile_digest])}.json.gz"
    if not is_whole(file, load_graph):
        with written(file):
            save_graph(slowed, file)
    return Variant(job, path.resolve(), file)


async def _solve(
    plan: Plan,
    graph_files: list[Path],
    cluster: Cluster,
    sharing: Literal["auto", SharingName],
    limit_seconds: float,
    cache: Path,
    say: Say,
    start: Path | None = None,
) -> Path:
    """The placement's file. Under `auto`, a folder beside it has a placement per sharing."""
    read = [*graph_files, *([] if start is None else [start])]
    question = [
        [hashlib.sha256(file.read_bytes()).hexdigest() for file in read],
        cluster.digest, sharing, plan.backend, plan.network.floor,
        plan.solve.model_dump(), limit_seconds, optimizer_digest(),
    ]  # fmt: skip
    file = cache / f"placement-{digest(question)}.json"
    if is_whole(file, load_placement):
        say(f"solve: {sharing}, from the cache")
        return file
    async with made_by_one(file, lambda: say(f"solve: {sharing}, another command is at it")):
        if not is_whole(file, load_placement):
            await _solve_into(file, plan, graph_files, cluster, sharing, limit_seconds, say, start)
    return file


async def _solve_into(
    file: Path,
    plan: Plan,
    graph_files: list[Path],
    cluster: Cluster,
    sharing: Literal["auto", SharingName],
    limit_seconds: float,
    say: Say,
    start: Path | None,
) -> None:
    cluster_file = file.parent / f"cluster-{cluster.digest[:16]}.json"
    write_cached(cluster_file, cluster.model_dump_json())
    rails = f" over {cluster.rails[0]} alone" if len(cluster.rails) == 1 else ""
    say(f"solve: {plan.solve.engine} under {sharing}{rails}, at most {limit_seconds:g} s")
    staged = file.with_name("staged-" + file.name)
    each = ["--out-each", str(_each_folder(file))] if sharing == "auto" else []
    words = [
        *OPTIMIZER_PROGRAM, "solve", *map(str, graph_files), "--cluster", str(cluster_file),
        "--engine", plan.solve.engine, "--sharing", sharing, "--backend", plan.backend,
        "--floor", str(plan.network.floor), "--gap", str(plan.solve.gap),
        "--time-limit", str(limit_seconds), "--seed", str(plan.solve.seed),
        "--out", str(staged), *each,
        # Other engines begin with nothing that is there.
        *([] if start is None or plan.solve.engine != "auto" else ["--start", str(start)]),
    ]  # fmt: skip
    await run_relayed(words, say)
    with written(file):
        staged.replace(file)


def _each_folder(file: Path) -> Path:
    return file.with_suffix(".each")
