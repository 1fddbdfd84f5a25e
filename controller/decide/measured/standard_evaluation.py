"""Profiles a step that no device can hold, on several devices of this machine.

This is the Standard Evaluation of Celeritas (section 4.2), in four parts. Small batches are
measured, and the wanted batch is estimated (`optimizer profile --small-batches`). The estimate is
placed by an engine (`optimizer solve`), which fills one device after the other unless another one
is asked for. Ranks run this placement, and record the times and memory of operators. The records
become the profile, and show how far the estimate was off (`optimizer profile --recorded`).
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from placewire.controller.decide.measured.optimizer_process import (
    OPTIMIZER_PROGRAM,
    Say,
    run_relayed,
)
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
from placewire.optimizer.capture.variants import Autocast, Recompute
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.names import WITHOUT_SHAPING, is_cpu
from placewire.optimizer.placement import Placement, load_placement
from placewire.optimizer.profile.recorded import TIMED_STEPS, WARM_UP_STEPS

_SERVER, _RAIL = "here", "loopback"
_LOOPBACK_BITS_PER_SECOND = 1e10


@dataclass(frozen=True)
class Evaluation:
    """devices: how many, all of one type. memory_bytes: of each device, for a rank's tensors.
    samples: recorded steps of the wanted batch and of each small one. placer: the engine that
    places the estimate. optimizer: JSON, as `optimizer profile` takes it. bucket: of a model whose
    batches have several shapes; None: the first."""

    model: str
    batch: int
    small_batches: tuple[int, ...]
    devices: int
    memory_bytes: int
    device_type: str = "cpu"
    threads: int = 1
    samples: int = TIMED_STEPS
    placer: str = "sequential"
    optimizer: str = "{}"
    accumulate: int = 1
    shards: int = 1
    recompute: Recompute = "none"
    autocast: Autocast | None = None
    seed: int = 0
    bucket: str | None = None


async def evaluate(asked: Evaluation, folder: Path, say: Say) -> Path:
    """The profiled graph's file. It lies in the folder, with all that it was made from; the
    estimate is rough.json.gz. Raises InfeasiblePlacement where the devices cannot hold the step,
    and PlacewireError where a part fails."""
    folder = folder.resolve()
    rough, placement_file = folder / "rough.json.gz", folder / "placement.json"
    cluster_file, measured = folder / "cluster.json", folder / "measured.json.gz"
    chosen = {"--autocast": asked.autocast, "--bucket": asked.bucket}
    more = [word for option, value in chosen.items() if value for word in (option, value)]
    words = [
        *PROFILE_PROGRAM, asked.model, "--batch", str(asked.batch), *more,
        "--small-batches", *map(str, asked.small_batches), "--accumulate", str(asked.accumulate),
        "--shards", str(asked.shards), "--recompute", asked.recompute,
        "--optimizer", asked.optimizer, "--seed", str(asked.seed),
        "--device-type", asked.device_type, "--threads", str(asked.threads),
        "--samples", str(asked.samples), "--out", str(rough),
    ]  # fmt: skip
    await run_relayed(words, say)
    cluster_file.write_text(_cluster(asked).model_dump_json())
    words = [
        *OPTIMIZER_PROGRAM, "solve", str(rough), "--cluster", str(cluster_file),
        "--engine", asked.placer, "--sharing", WITHOUT_SHAPING,
        "--backend", "gloo" if is_cpu(asked.device_type) else "nccl", "--out", str(placement_file),
    ]  # fmt: skip
    await run_relayed(words, say)
    notes = read_json(rough)["notes"]  # They name the first bucket where none was asked for.
    asked = replace(asked, bucket=notes.get("bucket"))
    specs = _specs(asked, load_placement(placement_file), placement_file, folder)
    say(f"run: {len(specs)} ranks, {specs[0].steps} steps of batch {asked.batch}")

    def tell(event: RankEvent) -> None:
        if isinstance(event, StepDone) and event.rank == 0:
            say(f"  step {event.step}: {event.seconds:.3f} s")

    await run_ranks(HereStarter(), specs, tell)
    traces = [str(spec.trace.file_of(spec.rank)) for spec in specs if spec.trace is not None]
    words = [*PROFILE_PROGRAM, str(rough), "--recorded", *traces, "--out", str(measured)]
    await run_relayed(words, say)
    return measured


def _cluster(asked: Evaluation) -> Cluster:
    """One server that has all the devices, so that no message between them passes a NIC."""
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


def _specs(
    asked: Evaluation, placement: Placement, placement_file: Path, folder: Path
) -> list[RankSpec]:
    """One per device that the placement uses. folder: where the ranks write traces."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        tcp_port: int = probe.getsockname()[1]
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
            shards=asked.shards,
            recompute=asked.recompute,
            autocast=asked.autocast,
            bucket=asked.bucket,
            optimizer=OptimizerSpec.model_validate(json.loads(asked.optimizer)),
            steps=WARM_UP_STEPS + 1 + asked.samples,
            seed=asked.seed,
            threads=asked.threads,
            trace=TraceSpec(folder=str(folder), steps=asked.samples, workspace=True),
        )
        for rank, device in enumerate(placement.devices_used)
    ]
