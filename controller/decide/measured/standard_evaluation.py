"""A profile of a step that no device can hold, on several devices of this machine.

The Standard Evaluation of Celeritas (section 4.2), each part by who can do it: small batches are
measured and the wanted one is estimated (`optimizer profile --small-batches`); the estimate is
placed by filling one device after the other (`optimizer solve --engine sequential`); ranks run
that, and record what operators took and held; the records become the profile, and say how far the
estimate was off (`optimizer profile --recorded`).
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from placewire.controller.decide.measured.optimizer_process import Say, run_relayed
from placewire.controller.launch.here import HereStarter
from placewire.controller.launch.launcher import PROFILE_PROGRAM
from placewire.controller.launch.ranks import run_ranks
from placewire.job.contract.specification import (
    OptimizerSpec,
    RailInterface,
    RankEvent,
    RankSpec,
    StepDone,
    TraceSpec,
)
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.names import WITHOUT_SHAPING, is_cpu
from placewire.optimizer.placement import Placement, load_placement

WARM_UP_STEPS = 5
_SERVER, _RAIL = "here", "loopback"
_LOOPBACK_BITS_PER_SECOND = 1e10


@dataclass(frozen=True)
class Evaluation:
    """devices: of one type, each with memory_bytes for a rank's tensors. samples: recorded steps
    of the wanted batch, and of each small one. optimizer: as `optimizer profile` takes it."""

    model: str
    batch: int
    small_batches: tuple[int, ...]
    devices: int
    memory_bytes: int
    device_type: str = "cpu"
    threads: int = 1
    samples: int = 9
    optimizer: str = "{}"
    accumulate: int = 1
    autocast: Literal["bf16"] | None = None
    seed: int = 0


async def evaluate(asked: Evaluation, folder: Path, say: Say) -> Path:
    """The profiled graph's file, in the folder, with all that it was made from: the estimate is
    rough.json.gz. Raises InfeasiblePlacement where the devices cannot hold the step, and
    PlacewireError with what a part of it said."""
    folder = folder.resolve()
    rough, placement_file = folder / "rough.json.gz", folder / "placement.json"
    measured = folder / "measured.json.gz"
    await run_relayed(
        [sys.executable, *PROFILE_PROGRAM, *_of_model(asked), "--out", str(rough)], say
    )
    cluster_file = folder / "cluster.json"
    cluster_file.write_text(cluster_of(asked).model_dump_json())
    await run_relayed(
        [sys.executable, "-m", "placewire.optimizer.cli", "solve", str(rough), "--cluster",
         str(cluster_file), "--engine", "sequential", "--sharing", WITHOUT_SHAPING, "--backend",
         backend_of(asked), "--out", str(placement_file)],
        say,
    )  # fmt: skip
    specs = specs_of(asked, load_placement(placement_file), placement_file, folder)
    say(f"run: {len(specs)} ranks, {specs[0].steps} steps of batch {asked.batch}")
    await run_ranks(HereStarter(), specs, lambda event: _tell(event, say))
    traces = [str(spec.trace.file_of(spec.rank)) for spec in specs if spec.trace is not None]
    await run_relayed(
        [sys.executable, *PROFILE_PROGRAM, str(rough), "--recorded", *traces, "--out",
         str(measured)],
        say,
    )  # fmt: skip
    return measured


def _of_model(asked: Evaluation) -> list[str]:
    autocast = ["--autocast", asked.autocast] if asked.autocast else []
    return [
        asked.model, "--batch", str(asked.batch), *autocast,
        "--small-batches", *map(str, asked.small_batches), "--accumulate", str(asked.accumulate),
        "--optimizer", asked.optimizer, "--seed", str(asked.seed),
        "--device-type", asked.device_type, "--threads", str(asked.threads),
        "--samples", str(asked.samples),
    ]  # fmt: skip


def backend_of(asked: Evaluation) -> Literal["gloo", "nccl"]:
    return "gloo" if is_cpu(asked.device_type) else "nccl"


def cluster_of(asked: Evaluation) -> Cluster:
    """One server with the devices: what passes between them passes no NIC."""
    device = Device(type=asked.device_type, memory_bytes=asked.memory_bytes)
    server = Server(
        name=_SERVER,
        devices=(device,) * asked.devices,
        nics=(Nic(rail=_RAIL, rate_bits_per_second=_LOOPBACK_BITS_PER_SECOND),),
    )
    return Cluster(
        servers=(server,),
        setup_latency_seconds=1e-4,
        intra_server_bits_per_second=_LOOPBACK_BITS_PER_SECOND,
    )


def specs_of(
    asked: Evaluation, placement: Placement, placement_file: Path, folder: Path
) -> list[RankSpec]:
    """One per device that the placement uses; folder: where traces go."""
    tcp_port = _free_tcp_port()
    return [
        RankSpec(
            kind="placed",
            rank=rank,
            world_size=len(placement.devices_used),
            device=device,
            master_address="127.0.0.1",
            master_tcp_port=tcp_port,
            rail_interfaces=(RailInterface(rail=_RAIL, interface="lo", address="127.0.0.1"),),
            placement_file=str(placement_file),
            backend=placement.backend,
            model=asked.model,
            batch=asked.batch,
            accumulate=asked.accumulate,
            autocast=asked.autocast,
            optimizer=_optimizer(asked.optimizer),
            steps=WARM_UP_STEPS + 1 + asked.samples,
            seed=asked.seed,
            threads=asked.threads,
            trace=TraceSpec(folder=str(folder), steps=asked.samples, workspace=True),
        )
        for rank, device in enumerate(placement.devices_used)
    ]


def _optimizer(text: str) -> OptimizerSpec:
    document: Mapping[str, Any] = json.loads(text)
    return OptimizerSpec.model_validate(document)


def _free_tcp_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tell(event: RankEvent, say: Say) -> None:
    if isinstance(event, StepDone) and event.rank == 0:
        say(f"  step {event.step}: {event.seconds:.3f} s")
