"""Item 3, real training: predicted and measured steps where every rank has a core of its own.

The servers are two namespaces joined by NICs that HTB limits, with the kernel's offloads: a lab's
switches, or frames of 1500 bytes, would take part of the two cores. Both cores are profiled at the
same time, as they will train. Within minutes a machine's own speed changes by as much as a
prediction may be off, so profiles and trainings take turns, and their medians are compared.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.measured import Ask, solve
from benchmarks.job.bare_ranks import PAYLOAD, replay
from benchmarks.job.namespaces import Namespaces
from benchmarks.job.replays import kept_graph
from benchmarks.report import ROOT
from benchmarks.table import Table
from placewire.job.contract.specification import OptimizerSpec
from placewire.optimizer.check.recompute.facts import Facts
from placewire.optimizer.check.recompute.times import recompute_times
from placewire.optimizer.chunks import with_windows
from placewire.optimizer.cluster import ASSUMED_MESSAGE_TIME, Cluster, Device, Nic, Server
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement
from placewire.optimizer.profile.joining import joined

SERVERS, RAILS = ("s1", "s2"), ("a", "b")
NIC_RATE, SETUP_SECONDS = 40e6, 5e-4
TURNS, STEPS, TRAIN_SECONDS, SOLVE_SECONDS = 3, 16, 900, 20.0
OPTIMIZER = OptimizerSpec(name="adamw", lr=1e-3)
WORST_AIM = 0.15


@dataclass(frozen=True)
class Case:
    """memory_bytes: the memory of each device, too little for the whole model."""

    model: str
    batch: int
    memory_bytes: int
    sharing: SharingName

    @property
    def path(self) -> str:
        return f"placewire.examples.models.{self.model}:training_step"


# With two servers, each NIC leads to one other server, which under each of these sharings has all
# of it.
CASES = (
    Case("alexnet", 128, 300 << 20, "strict"),
    Case("alexnet", 128, 300 << 20, "job"),
    Case("vgg16", 32, 450 << 20, "strict"),
    Case("vgg16", 32, 450 << 20, "unshaped"),
    Case("bert", 4, 1300 << 20, "job"),
)


@dataclass(frozen=True)
class Trained:
    """Seconds of this placement's step: the prediction of each profile, and the median of each turn
    of training. Profiles and turns alternate, and begin and end with a profile."""

    placement: Placement
    predictions: Sequence[float]
    turns: Sequence[float]

    @property
    def predicted(self) -> float:
        return statistics.median(self.predictions)

    @property
    def measured(self) -> float:
        return statistics.median(self.turns)

    @property
    def error(self) -> float:
        return self.measured / self.predicted - 1


def tables(pictures: Path | None) -> Iterable[Table]:
    trained = []
    for case in CASES:
        trained.append(_trained(case))
        print(f"    {' '.join(_row(case, trained[-1]))}", file=sys.stderr, flush=True)
    errors = [abs(one.error) for one in trained]
    yield Table(
        title="3. Predicted and measured steps: training, one core a rank",
        columns=(
            "model, batch", "sharing", "operators", "MB a step", "predicted, s", "measured, s",
            "error",
        ),
        rows=[_row(case, one) for case, one in zip(CASES, trained, strict=True)],
        notes=(
            f"Error {statistics.median(errors):.1%} in the median, {max(errors):.1%} at worst "
            f"(aim: {WORST_AIM:.0%}).",
            f"Two servers, one rank on each, on two cores in all; {len(RAILS)} NICs of "
            f"{NIC_RATE / 1e6:.0f} Mbit/s each, limited by HTB, without Open vSwitch; p0 "
            f"{SETUP_SECONDS * 1e3:g} ms; AdamW. Placed by the first profile, of both cores at "
            f"once; then {TURNS} trainings of {STEPS} steps, each followed by another profile. "
            "Predicted: the median of what the profiles make of this placement; measured: of the "
            "trainings' medians, first steps left out. In brackets the least and the most of both.",
        ),
    )  # fmt: skip


def _row(case: Case, of: Trained) -> Sequence[str]:
    sent = sum(message.bytes for message in of.placement.messages)
    return (
        f"{case.model}, {case.batch}", case.sharing, str(len(of.placement.operators)),
        f"{sent / 1e6:.1f}", _spread(of.predictions), _spread(of.turns), f"{of.error:+.1%}",
    )  # fmt: skip


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})"


def _trained(case: Case) -> Trained:
    print(f"  … {case.model}, {case.batch}, {case.sharing}", file=sys.stderr, flush=True)
    rates = {rail: dict.fromkeys(SERVERS, NIC_RATE) for rail in RAILS}
    with tempfile.TemporaryDirectory() as name, Namespaces(rates, offloads=True) as network:
        graph = profiled_on_both(case.path, case.batch, Path(name) / "first")
        cluster = two_servers(NIC_RATE, case.memory_bytes)
        ask = Ask(kept_graph(graph), cluster, "auto", case.sharing, time_limit=SOLVE_SECONDS)
        placement = solve(ask).placement
        if not placement.server_pairs:
            raise RuntimeError(f"{case}: all operators are on one server, so nothing is sent")
        return trained_in_turns(
            network, graph, placement, case.path, case.batch, Path(name), steps=STEPS
        )


def trained_in_turns(
    network: Namespaces,
    graph: OperatorGraph,
    placement: Placement,
    path: str,
    batch: int,
    folder: Path,
    *,
    steps: int,
) -> Trained:
    """Trains so many steps in each turn, and then profiles both cores anew. graph: the step of
    which this is a placement."""
    count, shards = graph.notes["accumulate"], graph.notes["shards"]
    predictions, turns = [placement.step_seconds], []
    for turn in range(TURNS):
        told = replay(
            network, graph, placement, steps, limit_seconds=TRAIN_SECONDS, kind="placed",
            graph_file=None, model=path, batch=batch, optimizer=OPTIMIZER.model_dump(),
            accumulate=count, shards=shards,
        )  # fmt: skip
        seconds = [max(both) for both in zip(*told.step_seconds.values(), strict=True)]
        turns.append(statistics.median(seconds[1:]))
        cut = ("--accumulate", str(count), "--shards", str(shards))
        again = profiled_on_both(path, batch, folder / f"{turn}", *cut)
        predictions.append(_step(again, placement))
    return Trained(placement, predictions, turns)


def profiled_on_both(path: str, batch: int, folder: Path, *more: str) -> OperatorGraph:
    """Profiles all cores at the same time, with empty caches. more: options of the profile."""
    started = []
    for core, server in enumerate(SERVERS):
        own = folder / server
        own.mkdir(parents=True)
        words = [
            "taskset", "-c", str(core), sys.executable, "-m",
            "placewire.optimizer.commands.profile", path, "--batch", str(batch),
            "--device-type", _type(server), "--optimizer", OPTIMIZER.model_dump_json(),
            "--cache", str(own / "cache"), "--out", str(own / "graph.json.gz"), *more,
        ]  # fmt: skip
        silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(words, cwd=ROOT, **silent))
    statuses = [process.wait() for process in started]
    if any(statuses):
        raise RuntimeError(f"{path}: a profile failed")
    return joined({_type(s): load_graph(folder / s / "graph.json.gz") for s in SERVERS})


def _type(server: str) -> str:
    return f"cpu:{server}"


def two_servers(rate_bits_per_second: float, memory_bytes: int) -> Cluster:
    """rate_bits_per_second: on the wire, of each NIC. memory_bytes: of each device."""
    rate = rate_bits_per_second * PAYLOAD
    nics = tuple(Nic(rail=rail, rate_bits_per_second=rate) for rail in RAILS)
    devices = {s: Device(type=_type(s), memory_bytes=memory_bytes) for s in SERVERS}
    servers = tuple(Server(name=s, devices=(devices[s],), nics=nics) for s in SERVERS)
    made = Cluster(
        servers=servers,
        setup_latency_seconds=SETUP_SECONDS,
        message_seconds=ASSUMED_MESSAGE_TIME["cpu"].seconds,
        message_seconds_per_byte=ASSUMED_MESSAGE_TIME["cpu"].seconds_per_byte,
        intra_server_bits_per_second=1e10,
    )
    return with_windows(made)


def _step(graph: OperatorGraph, placement: Placement) -> float:
    """The step of this placement by another profile of the same model."""
    times = recompute_times(Facts(graph, placement))
    assert times is not None
    return times.step_seconds
