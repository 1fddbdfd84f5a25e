"""Replays steps in a lab; results are kept, so that a run can be taken up again.

A result is kept under what decides it: the job, the placement, the graph, and the sources that run
it. Replays need root, and no other lab of this name.
"""

from __future__ import annotations

import hashlib
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.engine.measured import CACHE
from benchmarks.report import ROOT
from placewire.controller.lab import Lab, lab_down, lab_up
from placewire.controller.plan.plan_file import parse_plan
from placewire.optimizer.cluster import Cluster, Device
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement, save_placement

LAB = "replays"
# A host for neighbours, which is not part of the job.
HOST = "other"
# A lab's switches are processes that handle every packet: in frames of 1500 bytes two cores carry
# about 200 Mbit/s of payload at once, and steps would be as long as the switches take.
NIC_RATE, MTU = "30Mbit", 9000
# The sources that decide a measurement beside the job itself.
_SOURCES = ("job", "agent/drivers", "controller/compile", "controller/lab", "benchmarks/job")


@dataclass(frozen=True)
class Replay:
    """A placement to replay. graph: with the times that its operators take in the lab. warm_up: the
    first steps, which do not count. neighbour: the directions of greedy flows at the first server,
    on each rail of its cluster. spec: fields of RankSpec that differ."""

    name: str
    graph: OperatorGraph
    placement: Placement
    steps: int = 6
    warm_up: int = 1
    neighbour: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Replayed:
    """neighbour: the bits per second that the neighbour got, by direction."""

    steps: tuple[float, ...]
    warm_up: int
    neighbour: Mapping[str, float]

    @property
    def step_seconds(self) -> float:
        return statistics.median(self.steps[self.warm_up :])


def plan_document(
    servers: int,
    rails: int,
    *,
    name: str = LAB,
    host: bool = False,
    devices: int = 1,
    **nic: object,
) -> dict[str, Any]:
    """The plan of a lab, or without the neighbours' host that of a job. devices: of each server.
    nic: keys of each NIC that differ."""
    names = [f"s{k + 1}" for k in range(servers)] + ([HOST] if host else [])
    return {
        "version": 1,
        "name": name,
        "cluster": {
            # The lab's own; placements say what they emulate.
            "setup_latency": "0s",
            "intra_server_bandwidth": "10Gbit",
            "servers": [
                {
                    "name": server,
                    "management": f"10.9.0.{k}",
                    "devices": [{"type": "any", "memory": "1GiB"}] * devices,
                    "nics": [
                        {
                            "name": f"nic{r}", "rail": chr(ord("a") + r), "rate": NIC_RATE,
                            "address": f"10.7.{r}.{k}/24", "mtu": MTU, "take_over": True, **nic,
                        }
                        for r in range(rails)
                    ],
                }
                for k, server in enumerate(names, start=1)
            ],
        },
        "job": {"kind": "replay", "graph": "README.md", "steps": 1},
    }  # fmt: skip


def replayed(jobs: Sequence[Replay]) -> list[Replayed]:
    """The outcomes of these jobs; one lab runs all jobs that have no kept outcome."""
    kept = [(job, CACHE / f"replay-{_key(job)}.json") for job in jobs]
    if waiting := [(job, file) for job, file in kept if not file.exists()]:
        CACHE.mkdir(parents=True, exist_ok=True)
        _run(waiting)
    found = [(job, json.loads(file.read_text())) for job, file in kept]
    return [
        Replayed(tuple(one["step_seconds"]), job.warm_up, one["neighbour"]) for job, one in found
    ]


def _run(waiting: Sequence[tuple[Replay, Path]]) -> None:
    servers = max(len(job.placement.cluster.servers) for job, _ in waiting)
    rails = max(len(job.placement.cluster.rails) for job, _ in waiting)
    host = any(job.neighbour for job, _ in waiting)
    with lab_of(plan_document(servers, rails, host=host)) as lab:
        requests = [json.dumps(_request(job, servers)) for job, _ in waiting]
        command = [sys.executable, "-m", "benchmarks.job.in_lab", LAB]
        with subprocess.Popen(
            lab.inside_controller(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, cwd=ROOT, env=lab.environment,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n".join(requests) + "\n")
            process.stdin.close()
            try:
                for job, file in waiting:
                    line = process.stdout.readline()
                    if not line:
                        raise RuntimeError(f"{job.name}: the lab's runner ended")
                    file.write_text(line)
                    took = json.loads(line)["step_seconds"]
                    print(f"  … {job.name}: {took}", file=sys.stderr, flush=True)
            finally:
                process.terminate()


def _request(job: Replay, servers: int) -> dict[str, Any]:
    cluster = job.placement.cluster
    placement = CACHE / f"replay-{_key(job)}.placement.json"
    save_placement(job.placement, placement)
    devices = len(cluster.servers[0].devices)
    document = plan_document(len(cluster.servers), len(cluster.rails), devices=devices)
    document["network"] = {"sharing": job.placement.sharing, "floor": job.placement.floor}
    hosts = [f"10.7.{r}.{servers + 1}" for r in range(len(cluster.rails))]
    neighbour = {"host": HOST, "server": "s1", "addresses": hosts, "directions": job.neighbour}
    return {
        "plan": document,
        "graph": str(kept_graph(job.graph)),
        "placement": str(placement),
        "spec": {"steps": job.steps, **job.spec},
        "neighbour": neighbour if job.neighbour else None,
    }


def kept_graph(graph: OperatorGraph) -> Path:
    """The file of a graph, by content."""
    file = CACHE / f"replay-{graph.structure_hash[:12]}-{graph.profile_digest[:12]}.json.gz"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        save_graph(graph, file)
    return file


@contextmanager
def lab_of(document: dict[str, Any]) -> Iterator[Lab]:
    """A lab of this plan, which goes down however the block ends, SIGTERM included."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    lab = lab_up(parse_plan(document, "lab", ROOT), lambda text: None)
    try:
        yield lab
    finally:
        lab_down(LAB, lambda text: None)
        signal.signal(signal.SIGTERM, before)


def lab_cluster(servers: int, rails: int, setup_latency_seconds: float, device: str) -> Cluster:
    """The lab as the optimizer sees it, with this set-up latency and devices of this type."""
    cluster = parse_plan(plan_document(servers, rails), "lab", ROOT).payload_cluster
    changed = {"devices": (Device(type=device, memory_bytes=2**34),)}
    return Cluster(
        servers=tuple(server.model_copy(update=changed) for server in cluster.servers),
        setup_latency_seconds=setup_latency_seconds,
        intra_server_bits_per_second=cluster.intra_server_bits_per_second,
    )


def _key(job: Replay) -> str:
    spec = {"steps": job.steps, "neighbour": job.neighbour, **job.spec, "rate": NIC_RATE}
    parts = [
        json.dumps(spec, sort_keys=True),
        job.placement.model_copy(update={"wall_seconds": {}}).model_dump_json(),
        job.graph.profile_digest,
        _sources_digest(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _sources_digest() -> str:
    files = [file for folder in _SOURCES for file in sorted((ROOT / folder).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
