"""Replayed steps in a lab, kept so that a run can be taken up again.

A result is kept under what decides it: the job, the placement, the graph, and the sources that
carry it out. Without root, or while another lab of the name is up, nothing can be measured.
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
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement, save_placement

LAB = "replays"
# A host that is not the job's, for neighbours.
HOST = "other"
# A lab's switches are processes that take up every packet: two cores carry about 200 Mbit/s of
# payload at once, and at higher rates steps are as long as the switches take.
NIC_RATE = "30Mbit"
# What decides a measurement beside the job itself.
_SOURCES = ("job", "agent/drivers", "controller/compile", "controller/lab", "benchmarks/job")


@dataclass(frozen=True)
class Replay:
    """graph has the times that its operators take in the lab, and placement is for it. neighbour:
    directions of greedy flows at the first server, on each rail of its cluster. warm_up: steps that
    do not count. spec: fields of RankSpec that differ."""

    name: str
    graph: OperatorGraph
    placement: Placement
    steps: int = 6
    warm_up: int = 1
    neighbour: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Replayed:
    """neighbour: bits per second that it got, by direction."""

    steps: tuple[float, ...]
    warm_up: int
    neighbour: Mapping[str, float]

    @property
    def step_seconds(self) -> float:
        return statistics.median(self.steps[self.warm_up :])


def plan_document(servers: int, rails: int, *, host: bool = False) -> dict[str, Any]:
    """The lab's plan; each job's is the same without the neighbour's host."""
    names = [f"s{k + 1}" for k in range(servers)] + ([HOST] if host else [])
    return {
        "version": 1,
        "name": LAB,
        "cluster": {
            # Of the lab; placements say what they emulate.
            "setup_latency": "0s",
            "intra_server_bandwidth": "10Gbit",
            "servers": [
                {
                    "name": name,
                    "management": f"10.9.0.{k}",
                    "devices": [{"type": "any", "memory": "1GiB"}],
                    "nics": [
                        {
                            "name": f"nic{r}", "rail": chr(ord("a") + r), "rate": NIC_RATE,
                            "address": f"10.7.{r}.{k}/24", "take_over": True,
                        }
                        for r in range(rails)
                    ],
                }
                for k, name in enumerate(names, start=1)
            ],
        },
        "job": {"kind": "replay", "graph": "README.md", "steps": 1},
    }  # fmt: skip


def replayed(jobs: Sequence[Replay]) -> list[Replayed]:
    """In their order; those without a kept result are run, in one lab that holds them all."""
    files = [CACHE / f"replay-{_key(job)}.json" for job in jobs]
    waiting = [(job, file) for job, file in zip(jobs, files, strict=True) if not file.exists()]
    if waiting:
        CACHE.mkdir(parents=True, exist_ok=True)
        _run(waiting)
    found = [json.loads(file.read_text()) for file in files]
    return [
        Replayed(tuple(one["step_seconds"]), job.warm_up, one["neighbour"])
        for job, one in zip(jobs, found, strict=True)
    ]


def _run(waiting: Sequence[tuple[Replay, Path]]) -> None:
    servers = max(len(job.placement.cluster.servers) for job, _ in waiting)
    rails = max(len(job.placement.cluster.rails) for job, _ in waiting)
    host = any(job.neighbour for job, _ in waiting)
    with lab_of(plan_document(servers, rails, host=host)) as lab:
        requests = [json.dumps(_request(job, servers)) for job, _ in waiting]
        command = [sys.executable, "-m", "benchmarks.job.in_lab", LAB]
        with subprocess.Popen(
            lab.inside_controller(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=lab.environment,
        ) as process:
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
    document = plan_document(len(cluster.servers), len(cluster.rails))
    document["network"] = {"sharing": job.placement.sharing, "floor": job.placement.floor}
    hosts = [f"10.7.{r}.{servers + 1}" for r in range(len(cluster.rails))]
    return {
        "plan": document,
        "graph": str(kept_graph(job.graph)),
        "placement": str(placement),
        "spec": {"steps": job.steps, **job.spec},
        "neighbour": {
            "host": HOST, "server": "s1", "addresses": hosts, "directions": list(job.neighbour),
        }
        if job.neighbour
        else None,
    }  # fmt: skip


def kept_graph(graph: OperatorGraph) -> Path:
    """Its file, by content."""
    name = f"replay-{graph.structure_hash[:12]}-{graph.profile_digest[:12]}.json.gz"
    file = CACHE / name
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        save_graph(graph, file)
    return file


@contextmanager
def lab_of(document: dict[str, Any]) -> Iterator[Lab]:
    """Goes again however this ends, SIGTERM included."""
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
    return Cluster(
        servers=tuple(
            server.model_copy(
                update={
                    "devices": tuple(
                        one.model_copy(update={"type": device, "memory_bytes": 2**34})
                        for one in server.devices
                    )
                }
            )
            for server in cluster.servers
        ),
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
