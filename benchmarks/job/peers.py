"""Item 11: ours beside DDP, FSDP and pipelines on four servers, replayed in a lab.

The lab is a cluster of GPU servers in slow motion. Its NICs stand for fast ones: operators and p0
are slower by one factor, and all tensors smaller by another. A peer's graph and order are those
that `optimizer advise` simulates. The device that runs its collectives is a rank of its own, to and
from which a byte is sent wherever it and the operators of the device wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.engine.parallelisms import PEERS, optimizer, variant_file
from benchmarks.engine.setting import DEVICE, cluster
from benchmarks.job.replays import CACHE, Replay, kept_graph, lab_cluster, replayed
from benchmarks.table import Table
from placewire.optimizer.arrays import IntArray
from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.assemble import assemble
from placewire.optimizer.engines.bundling import Bundled
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.beside_devices import COMMUNICATION
from placewire.optimizer.peers.compare import peers_of
from placewire.optimizer.placement import Placement, load_placement
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.profile.scale import with_scaled_seconds
from placewire.optimizer.simulation.bundles import PlacedStep
from placewire.optimizer.simulation.simulate import simulate
from placewire.optimizer.simulation.timeline import Timeline

MODELS = ("alexnet 512", "vgg16 512", "bert 64", "gpt2 64", "mixture 64")
MICRO_BATCHES = (1, 4, 8)
SERVERS, NICS, GIGABITS, SETUP_LATENCY_SECONDS = 4, 2, 40.0, 10e-6
# How many times slower the lab is.
SLOWER = 100.0
SOLVE_SECONDS = 60.0
# The first step does not count.
STEPS = 4
OURS, ALONE = "ours", "one device"
WAYS = (ALONE, *PEERS, OURS)
AIM = 0.05


@dataclass(frozen=True)
class Placed:
    """graph, placement: with the lab's times and sizes."""

    graph: OperatorGraph
    placement: Placement


def tables(pictures: Path | None) -> Iterable[Table]:
    placed = {(model, way): one for model in MODELS for way, one in ways(model).items()}
    jobs = [
        Replay(f"{model}, {way}", one.graph, one.placement, STEPS)
        for (model, way), one in placed.items()
    ]
    measured = dict(zip(placed, replayed(jobs), strict=True))
    rows, errors = [], []
    for model in MODELS:
        row, steps = [model], {}
        for way in WAYS:
            if (model, way) not in placed:
                row.append("-")
                continue
            predicted = placed[model, way].placement.step_seconds
            steps[way] = measured[model, way].step_seconds
            errors.append(steps[way] / predicted - 1)
            row.append(f"{steps[way]:.3f} ({errors[-1]:+.1%})")
        best = min(step for way, step in steps.items() if way != OURS)
        rows.append([*row, f"{steps[OURS] / best:.2f}"])
    within = sum(abs(error) <= AIM for error in errors)
    yield Table(
        title=f"11. Ours beside what users would take, replayed on {SERVERS} servers x {NICS} NICs",
        columns=("graph batch", *WAYS, "ratio"),
        rows=rows,
        notes=(
            f"Measured seconds of a step in slow motion, {SLOWER:g} times, and how far they are "
            f"off the prediction; within {AIM:.0%} in {within} of {len(errors)} cases, "
            f"{max(map(abs, errors)):.1%} at worst. Medians of {STEPS - 1} steps after the first. "
            f"NICs stand for {GIGABITS:g} Gbit/s, p0 for {SETUP_LATENCY_SECONDS * 1e6:g} us; "
            f"modelled times of {DEVICE}. Messages take no time of devices. Ours: found in "
            f"{SOLVE_SECONDS:g} s. Ratio: ours over the best of the others, measured.",
        ),
    )


def ways(model: str) -> Mapping[str, Placed]:
    """Every way that can run the model, by name."""
    files = [
        variant_file(model, count, shards)
        for count in MICRO_BATCHES
        for shards in ((1, SERVERS) if count > 1 else (1,))
    ]
    graphs = [load_graph(file) for file in files]
    slow = _slowed(graphs[0])
    alone = place(Problem(slow, _lab(1), sharing="job"), "single", SolveSettings())
    return {
        ALONE: Placed(slow, alone), **peers_in_lab(graphs), OURS: _ours(model, graphs),
    }  # fmt: skip


def peers_in_lab(graphs: Sequence[OperatorGraph]) -> dict[str, Placed]:
    """The best of each peer on fast NICs, as it runs in the lab. graphs: variants of one step."""
    found = {}
    for step in peers_of(graphs, fast_cluster(), lambda line: None):
        assert step.simulated is not None
        found[step.name] = _in_lab(step.name, *step.simulated)
    return found


def fast_cluster() -> Cluster:
    """For which the lab stands."""
    made = cluster(GIGABITS, servers=SERVERS, nics=NICS)
    return made.model_copy(update={"setup_latency_seconds": SETUP_LATENCY_SECONDS})


def _slowed(graph: OperatorGraph) -> OperatorGraph:
    """With the lab's times and sizes."""
    fewer = GIGABITS * 1e9 / (SLOWER * float(_lab(1).nic_rates[0, 0]))
    smaller = np.ceil(graph.tensor_bytes / fewer).astype(np.int64)
    return replace(with_scaled_seconds(graph, SLOWER), tensor_bytes=smaller)


def _lab(devices: int) -> Cluster:
    """devices: of a server, each second one for collectives."""
    one = lab_cluster(SERVERS, NICS, SETUP_LATENCY_SECONDS * SLOWER, DEVICE)
    if devices == 1:
        return one
    servers = []
    for server in one.servers:
        own = server.devices[0]
        beside = own.model_copy(update={"type": COMMUNICATION})
        servers.append(server.model_copy(update={"devices": (own, beside)}))
    return one.model_copy(update={"servers": tuple(servers)})


def _in_lab(name: str, problem: Problem, timeline: Timeline) -> Placed:
    """The same devices and order in the lab."""
    device = np.empty(problem.graph.operator_count, dtype=np.int64)
    priority = np.empty(len(device))
    for d, row in enumerate(timeline.order):
        device[list(row)], priority[list(row)] = d, -np.arange(len(row))
    graph = _with_waits_sent(_slowed(problem.graph), device)
    lab = _lab(len(problem.cluster.servers[0].devices))
    problem = replace(problem, graph=graph, cluster=lab)
    timeline = simulate(problem, device, None, timeline.order)
    step = PlacedStep(graph, device, timeline.order)
    made = Bundled(Solution(device, priority, None), problem, step, timeline)
    alone = best_single(problem)
    placement = assemble(
        problem, made, lower_bound(problem), engine=name, reduction="none", seed=0, wall_seconds={},
        single_device_seconds=None if alone is None else alone[1],
    )  # fmt: skip
    return Placed(graph, placement)


def _with_waits_sent(graph: OperatorGraph, device: IntArray) -> OperatorGraph:
    """A tensor of no bytes from or to a collective has one where it leaves its device: what is
    not sent orders nothing between ranks."""
    size = graph.tensor_bytes.copy()
    source, target, tensor = graph.edges
    types = np.array(graph.types, dtype=object)
    collective = (types[source] == COMMUNICATION) | (types[target] == COMMUNICATION)
    waits = collective & (device[source] != device[target]) & (size[tensor] == 0)
    size[tensor[waits]] = 1
    return replace(graph, tensor_bytes=size)


def _ours(model: str, graphs: Sequence[OperatorGraph]) -> Placed:
    slow = [_slowed(graph) for graph in graphs]
    files = [kept_graph(graph) for graph in slow]
    mark = "-".join(graph.structure_hash[:6] for graph in slow)
    out = CACHE / f"peers-{model.replace(' ', '_')}-{mark}.json.gz"
    if not out.exists():
        on = CACHE / f"peers-{model.replace(' ', '_')}.cluster.json"
        on.write_text(_lab(1).model_dump_json())
        optimizer(
            "solve", *map(str, files), "--cluster", str(on), "--sharing", "job", "--gap", "0",
            "--time-limit", f"{SOLVE_SECONDS:g}", "--out", str(out),
        )  # fmt: skip
    placement = load_placement(out)
    taken = next(one for one in slow if one.structure_hash == placement.structure_hash)
    return Placed(taken, placement)
