"""Item 9: real training beside PyTorch's DDP, FSDP2 and pipelining, on the same two servers.

Servers, cores and NICs are those of training.py. PyTorch's ranks have a core each, and so have the
profiles.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job.namespaces import Namespaces
from benchmarks.job.training import (
    OPTIMIZER,
    RAILS,
    SERVERS,
    TURNS,
    Trained,
    profiled_on_both,
    trained_in_turns,
    two_servers,
)
from benchmarks.report import ROOT
from benchmarks.table import Table
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.placement import load_placement

STEPS, LIMIT_SECONDS, SOLVE_SECONDS = 10, 900, 40
MICRO_BATCHES, SHARDS = (1, 2, 4), (1, 2)
PORT, MEMORY_BYTES = 29700, 8 << 30


@dataclass(frozen=True)
class Case:
    """splits: where PyTorch's pipelining begins the second, third and last of four stages; the
    second of two begins where the third of four does. Empty where it cannot cut the model.
    rate: of each NIC, so that DDP communicates about as long as it computes."""

    model: str
    batch: int
    rate_bits_per_second: float
    splits: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"placewire.examples.models.{self.model}:training_step"


CASES = (
    Case("alexnet", 128, 400e6, ("features.3", "features.8", "classifier")),
    Case("vgg16", 32, 800e6, ("features.7", "features.17", "features.24")),
    Case("bert", 4, 600e6, ("layers.3", "layers.6", "layers.9")),
    Case("gpt2", 4, 600e6, ()),
    Case("mixture", 4, 600e6, ()),
)


# The column's name, the way, and how many NICs gloo is given.
WAYS = (
    ("ddp, 1 NIC", "ddp", 1), ("ddp", "ddp", 2), ("fsdp, 1 NIC", "fsdp", 1), ("fsdp", "fsdp", 2),
    ("gpipe, 1 NIC", "gpipe", 1), ("gpipe", "gpipe", 2), ("1f1b, 1 NIC", "1f1b", 1),
    ("1f1b", "1f1b", 2), ("interleaved", "interleaved", 2),
)  # fmt: skip


def tables(pictures: Path | None) -> Iterable[Table]:
    rows = []
    for case in CASES:
        found = row(case)
        print(f"    {' '.join(found)}", file=sys.stderr, flush=True)
        rows.append(found)
    yield Table(
        title="9. Real training beside PyTorch's own ways, seconds of a step",
        columns=(
            "model, batch, NIC", "one device", *(name for name, *_ in WAYS), "ours", "predicted",
            "off", "micro-batches x shards",
        ),
        rows=rows,
        notes=(
            "Two servers with one core each, on two NICs of this rate, limited by HTB, without "
            "Open vSwitch; AdamW. One device: plain PyTorch. Pipelines: two stages, interleaved "
            "four, and the best of 2, 4 and 8 micro-batches. Ours: found in "
            f"{SOLVE_SECONDS} s from profiles of both cores at once; then {TURNS} trainings, each "
            "followed by another profile, because the machine's own speed changes. Predicted and "
            f"measured: medians of these. A training is the median of {STEPS - 1} steps after the "
            "first.",
        ),
    )  # fmt: skip


def row(case: Case) -> Sequence[str]:
    rates = {rail: dict.fromkeys(SERVERS, case.rate_bits_per_second) for rail in RAILS}
    with tempfile.TemporaryDirectory() as name, Namespaces(rates, offloads=True) as network:
        alone = _alone(case)
        peers = [_peer(network, case, way, nics) for _, way, nics in WAYS]
        variant, ours = _ours(network, case, Path(name))
    return (
        f"{case.model}, {case.batch}, {case.rate_bits_per_second / 1e6:.0f}M", f"{alone:.3f}",
        *("-" if one is None else f"{one:.3f}" for one in peers), f"{ours.measured:.3f}",
        f"{ours.predicted:.3f}", f"{ours.error:+.1%}", variant,
    )  # fmt: skip


def _alone(case: Case) -> float:
    command = [
        "taskset", "-c", "0", sys.executable, "-m", "benchmarks.job.taking_turns", "eager",
        case.path, str(case.batch), "1", OPTIMIZER.model_dump_json(),
    ]  # fmt: skip
    lines = "".join(f"{k}\n" for k in range(STEPS))
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, cwd=ROOT, check=True,
        timeout=LIMIT_SECONDS,
    )  # fmt: skip
    return statistics.median(list(map(float, done.stdout.split()))[1:])


def _peer(network: Namespaces, case: Case, way: str, nics: int) -> float | None:
    """Seconds of a step; None where PyTorch cannot cut the model into stages."""
    arguments = [way, case.path, str(case.batch), str(STEPS)]
    if way in ("ddp", "fsdp"):
        return _trained(network, nics, arguments)
    if not case.splits:
        return None
    splits = ",".join(case.splits) if way == "interleaved" else case.splits[1]
    counts = [str(n) for n in (2, 4, 8) if n <= case.batch]
    return min(_trained(network, nics, [*arguments, splits, count]) for count in counts)


def _trained(network: Namespaces, nics: int, arguments: Sequence[str]) -> float:
    interfaces = ",".join(network.nic(rail) for rail in RAILS[:nics])
    environment = (f"GLOO_SOCKET_IFNAME={interfaces}", "OMP_NUM_THREADS=1", f"PYTHONPATH={ROOT}")
    started = []
    for k, server in enumerate(SERVERS):
        command = [
            *network.prefix(server), "env", *environment, "taskset", "-c", str(k), sys.executable,
            "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
            "--node-rank", str(k), "--master-addr", network.address(SERVERS[0], RAILS[0]),
            "--master-port", str(PORT), str(ROOT / "benchmarks/job/rival.py"), *arguments,
        ]  # fmt: skip
        started.append(
            subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    try:
        said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.terminate()  # torchrun then ends its workers, which SIGKILL would leave running
        for process in started:
            process.wait()
    if any(process.returncode for process in started):
        raise RuntimeError(f"{arguments}\n{said[0][-3000:]}\n{said[1][-1500:]}")
    steps = [list(map(float, re.findall(r"^step ([\d.]+) ", text, re.M))) for text in said]
    return statistics.median(list(map(max, zip(*steps, strict=True)))[1:])


def _ours(network: Namespaces, case: Case, folder: Path) -> tuple[str, Trained]:
    """Also returns in how many micro-batches and shards the step is cut."""
    graphs = []
    for count in MICRO_BATCHES:
        for shards in SHARDS:
            if count <= case.batch:
                own = folder / f"{count}x{shards}"
                cut = ("--accumulate", str(count), "--shards", str(shards))
                graph = profiled_on_both(case.path, case.batch, own, *cut)
                graphs.append(own / "graph.json.gz")
                save_graph(graph, graphs[-1])
    cluster = folder / "cluster.json"
    cluster.write_text(two_servers(case.rate_bits_per_second, MEMORY_BYTES).model_dump_json())
    out = folder / "placement.json.gz"
    done = subprocess.run(
        [
            sys.executable, "-m", "placewire.optimizer.cli", "solve", *map(str, graphs),
            "--cluster", str(cluster), "--sharing", "job", "--time-limit", str(SOLVE_SECONDS),
            "--out", str(out),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{case}: no placement\n{done.stderr[-2000:]}")
    placement = load_placement(out)
    graph = next(g for g in map(load_graph, graphs) if g.structure_hash == placement.structure_hash)
    trained = trained_in_turns(
        network, graph, placement, case.path, case.batch, folder / "turns", steps=STEPS
    )
    return f"{graph.notes['accumulate']}x{graph.notes['shards']}", trained
