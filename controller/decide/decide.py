"""plan.yaml to a placement: capture and profile (or a graph file), then solve, each cached.

Capture and profile run on the servers (measured/profiles.py), solve as a process of its own: the
user's model is imported by none of ours, an interrupt ends them at once, and the controller stays
light. A cached answer is used again only while everything that it was made from is the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from placewire.controller.decide.measured.calibration import with_setup_latency
from placewire.controller.decide.measured.digests import digest, optimizer_digest
from placewire.controller.decide.measured.optimizer_process import Say, run_relayed
from placewire.controller.decide.measured.profiles import profiled_graph
from placewire.controller.errors import PlanError
from placewire.controller.plan.job import PlacedJob, ReplayJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.names import WITHOUT_SHAPING, SharingName
from placewire.optimizer.placement import load_placement

if TYPE_CHECKING:
    from placewire.controller.launch.launcher import Launcher
    from placewire.optimizer.cluster import Cluster
    from placewire.optimizer.placement import Placement

# Of the time under `sharing: auto`, what the comparison with one NIC takes.
_ONE_NIC_PART = 0.15


@dataclass(frozen=True)
class PlacementDecision:
    """placement is the best predicted of considered, which holds one per sharing that was tried;
    one_nic: the best over a single rail, unshaped, for comparison.

    graph_file: the operator graph that ranks are given; for a replay the user's, not slowed.
    scored_file: the graph that the placement is for; for a replay the slowed one.
    """

    graph_file: Path
    scored_file: Path
    placement_file: Path
    placement: Placement
    considered: tuple[Placement, ...]
    one_nic: Placement | None = None

    @property
    def allocation(self) -> Placement:
        return self.placement

    @property
    def predicted_step_seconds(self) -> float:
        return self.placement.step_seconds

    @property
    def compared(self) -> tuple[Placement, ...]:
        """All that was searched for, what is shown for comparison last."""
        return self.considered if self.one_nic is None else (*self.considered, self.one_nic)

    @property
    def graph_notes(self) -> Mapping[str, Any]:
        """What capture wrote of the graph: which operators are its loss and inputs. Reads the
        file."""
        notes: Mapping[str, Any] = read_json(self.graph_file)["notes"]
        return notes


async def decide(
    plan: Plan, plan_file: Path, launcher: Launcher, cache: Path, say: Say
) -> PlacementDecision:
    """launcher: what a placed job's operators are measured through.

    Raises InfeasiblePlacement where nothing fits, PlanError where the job cannot be read, and what
    measured.profiles raises.
    """
    cache.mkdir(parents=True, exist_ok=True)
    plan = with_setup_latency(plan, cache, say)
    graph_file, scored_file = await _graphs(plan, plan_file, launcher, cache, say)
    cluster, limit = plan.payload_cluster, plan.solve.time_limit_seconds
    if isinstance(plan.job, ReplayJob):
        cluster = slowed(cluster, plan.job.time_scale)
    if plan.network.sharing != "auto":
        file = await _solve(plan, scored_file, cluster, plan.network.sharing, limit, cache, say)
        placement = load_placement(file)
        return PlacementDecision(graph_file, scored_file, file, placement, (placement,))
    alone = _over_one_rail(cluster) if plan.solve.engine != "single" else None
    searched = limit if alone is None else limit * (1 - _ONE_NIC_PART)
    file = await _solve(plan, scored_file, cluster, "auto", searched, cache, say)
    one_nic = None
    if alone is not None:
        limit -= searched
        one_nic = await _solve(plan, scored_file, alone, WITHOUT_SHAPING, limit, cache, say)
    each = [_each_folder(file) / f"{sharing}.json" for sharing in get_args(SharingName)]
    considered = tuple(load_placement(one) for one in each if one.is_file())
    taken = load_placement(file).sharing
    return PlacementDecision(
        graph_file,
        scored_file,
        file,
        next(one for one in considered if one.sharing == taken),
        considered,
        None if one_nic is None else load_placement(one_nic),
    )


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """What a replay emulates beside its operators: messages take so many times longer to set up,
    and to travel inside a server. NICs are what they are."""
    return cluster.model_copy(
        update={
            "setup_latency_seconds": cluster.setup_latency_seconds * factor,
            "intra_server_bits_per_second": cluster.intra_server_bits_per_second / factor,
        }
    )


def _over_one_rail(cluster: Cluster) -> Cluster | None:
    """The same servers with only their fastest rail; None where there are not two."""
    if len(cluster.rails) < 2:
        return None
    total = cluster.nic_rates.sum(axis=0).tolist()
    rail = cluster.rails[total.index(max(total))]
    servers = tuple(
        server.model_copy(update={"nics": tuple(nic for nic in server.nics if nic.rail == rail)})
        for server in cluster.servers
    )
    return cluster.model_copy(update={"servers": servers})


async def _graphs(
    plan: Plan, plan_file: Path, launcher: Launcher, cache: Path, say: Say
) -> tuple[Path, Path]:
    """(what ranks are given, what the placement is found for): apart for a replay only, whose
    ranks slow the user's graph down themselves."""
    if isinstance(plan.job, ReplayJob):
        return await asyncio.to_thread(_replay_graphs, plan.job, plan_file, cache)
    assert isinstance(plan.job, PlacedJob), "a script is not placed"
    graph = await profiled_graph(plan, plan.job, plan_file, launcher, cache, say)
    return graph, graph


def _replay_graphs(job: ReplayJob, plan_file: Path, cache: Path) -> tuple[Path, Path]:
    """The user's graph, and the same with its operators slowed by the time scale."""
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
    if not file.is_file():
        save_graph(slowed, file)
    return path.resolve(), file


async def _solve(
    plan: Plan,
    graph_file: Path,
    cluster: Cluster,
    sharing: Literal["auto", SharingName],
    limit_seconds: float,
    cache: Path,
    say: Say,
) -> Path:
    """The placement's file. Under `auto` the best, and beside it a folder with one per sharing."""
    graph_digest = hashlib.sha256(graph_file.read_bytes()).hexdigest()
    question = [
        graph_digest, cluster.digest, sharing, plan.backend, plan.network.floor,
        plan.solve.model_dump(), limit_seconds, optimizer_digest(),
    ]  # fmt: skip
    file = cache / f"placement-{digest(question)}.json"
    if file.is_file():
        say(f"solve: {sharing}, from the cache")
        return file
    cluster_file = cache / f"cluster-{cluster.digest[:16]}.json"
    cluster_file.write_text(cluster.model_dump_json())
    rails = f" over {cluster.rails[0]} alone" if len(cluster.rails) == 1 else ""
    say(f"solve: {plan.solve.engine} under {sharing}{rails}, at most {limit_seconds:g} s")
    staged = file.with_name("staged-" + file.name)
    each = ["--out-each", str(_each_folder(file))] if sharing == "auto" else []
    # fmt: off
    await run_relayed(
        [sys.executable, "-m", "placewire.optimizer.cli", "solve", str(graph_file),
         "--cluster", str(cluster_file), "--engine", plan.solve.engine, "--sharing", sharing,
         "--backend", plan.backend, "--floor", str(plan.network.floor),
         "--gap", str(plan.solve.gap),
         "--time-limit", str(limit_seconds), "--seed", str(plan.solve.seed),
         "--out", str(staged), *each],
        say,
    )
    # fmt: on
    staged.replace(file)
    return file


def _each_folder(file: Path) -> Path:
    return file.with_suffix(".each")
