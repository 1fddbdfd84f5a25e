"""Compiles a placement to one RankSpec per device that it uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from placewire.agent.contract.entries import bridge_name
from placewire.controller.plan.job import Job, PlacedJob, ReplayJob, TorchrunJob
from placewire.controller.plan.plan import Plan
from placewire.job.contract.checkpoint import CheckpointSpec
from placewire.job.contract.specification import (
    OptimizerSpec,
    RailInterface,
    RankSpec,
    StateSpec,
    TraceSpec,
    ValidationSpec,
)
from placewire.optimizer.cluster_plan.section import PlanServer
from placewire.optimizer.device_names import device_name, server_of
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Placement

# One connection fills a NIC or a queue, and several only disturb each other. But where other
# traffic shares a NIC without queues, a pair's rate depends on its number of connections: of the
# share of a flow that `unshaped` counts on, one connection got a sixth and four got 70 %.
SOCKETS_PER_RAIL_BESIDE_OTHERS = 4


def rank_specs(
    plan: Plan,
    placement: Placement,
    placement_file: Path,
    graph_file: Path,
    bucket_files: Mapping[str, Path] | None = None,
) -> tuple[RankSpec, ...]:
    """In rank order. graph_file: read by a replay; a placed job captures its model again.
    bucket_files: the placements of other buckets than the first, by their names."""
    servers = {server.name: server for server in plan.cluster.servers}
    devices = placement.devices_used
    master = servers[server_of(devices[0])].management
    job = plan.job
    assert not isinstance(job, TorchrunJob), "a script is not started as ranks"
    return tuple(
        RankSpec(
            kind=job.kind,
            rank=rank,
            world_size=len(devices),
            device=device,
            master_address=master,
            master_tcp_port=job.rendezvous_port,
            rail_interfaces=rail_interfaces(plan, servers[server_of(device)], plan.rails),
            placement_file=str(placement_file),
            bucket_files={name: str(file) for name, file in (bucket_files or {}).items()},
            backend=placement.backend,
            sockets_per_rail=_sockets_per_rail(placement),
            acknowledgement_dscp=plan.network.acknowledgement_dscp,
            steps=job.steps,
            threads=job.threads,
            trace=trace_spec(job),
            **_of_kind(job, graph_file),
        )
        for rank, device in enumerate(devices)
    )


def _of_kind(job: PlacedJob | ReplayJob, graph_file: Path) -> dict[str, Any]:
    """The fields of a RankSpec that only this kind of job has."""
    if isinstance(job, ReplayJob):
        return {"graph_file": str(graph_file), "time_scale": job.time_scale}
    asked = job.checkpoint
    assert job.accumulate != "auto" and job.shards != "auto", "decided with the placement"
    assert job.recompute != "auto", "decided with the placement"
    return {
        "model": job.model,
        "batch": job.batch,
        "accumulate": job.accumulate,
        "shards": job.shards,
        "recompute": job.recompute,
        "autocast": job.autocast,
        "optimizer": OptimizerSpec.model_validate(job.optimizer_document),
        "state": None if job.state is None else StateSpec(**job.state.model_dump()),
        "seed": job.seed,
        "timeout_seconds": job.start_limit_seconds,
        "checkpoint": None if asked is None else CheckpointSpec(**asked.model_dump()),
        "validation": None
        if job.validation is None
        else ValidationSpec(**job.validation.model_dump()),
    }


def calibration_specs(
    plan: Plan, placement: Placement, placement_file: Path
) -> tuple[RankSpec, ...]:
    """One rank per server, on the rails that all are on; empty where no two servers share one."""
    servers = plan.cluster.servers
    interfaces = [rail_interfaces(plan, server, plan.rails) for server in servers]
    common = set.intersection(*({one.rail for one in some} for some in interfaces))
    if len(servers) < 2 or not common:
        return ()
    return tuple(
        RankSpec(
            kind="calibrate",
            rank=rank,
            world_size=len(servers),
            device=device_name(server.name, 0),
            master_address=servers[0].management,
            master_tcp_port=plan.job.rendezvous_port,
            rail_interfaces=tuple(one for one in interfaces[rank] if one.rail in common),
            placement_file=str(placement_file),
            backend=placement.backend,
            steps=0,
            threads=plan.job.threads,
        )
        for rank, server in enumerate(servers)
    )


def trace_spec(job: Job) -> TraceSpec | None:
    if isinstance(job, TorchrunJob) or job.trace is None:
        return None
    return TraceSpec(folder=job.trace.folder, steps=job.trace.steps)


def _sockets_per_rail(placement: Placement) -> int:
    unprotected = not SHARINGS[placement.sharing].protects_the_job and placement.backend == "gloo"
    others = bool(placement.cluster.background.any())
    return SOCKETS_PER_RAIL_BESIDE_OTHERS if unprotected and others else 1


def rail_interfaces(
    plan: Plan, server: PlanServer, rails: Iterable[str]
) -> tuple[RailInterface, ...]:
    """This server's interfaces, in the order of `rails`, without the rails that it is not on."""
    nics = {(one.name, nic.rail): nic for one in plan.cluster.servers for nic in one.nics}
    return tuple(
        RailInterface(
            rail=rail,
            interface=bridge_name(own.name),
            address=own.ip,
            peers=tuple(
                nic.ip for (name, on), nic in nics.items() if on == rail and name != server.name
            ),
        )
        for rail in rails
        if (own := nics.get((server.name, rail))) is not None
    )
