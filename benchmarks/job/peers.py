"""Item 11: ours beside DDP, FSDP and pipelines on four servers, replayed in a lab.

A peer's graph and order are those that `optimizer advise` simulates. The device that runs its
collectives is a rank of its own, to and from which a byte is sent wherever it and the operators of
the device wait for each other. FSDP's gathers and scatters are rings, as gloo makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.engine.parallelisms import PEERS
from benchmarks.engine.setting import DEVICE
from benchmarks.job.replays import Replay, replayed
from benchmarks.job.slow_motion import Placed, SlowMotion, solved
from benchmarks.table import Table
from placewire.optimizer.arrays import IntArray
from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.assemble import assemble
from placewire.optimizer.engines.bundling import Bundled
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.beside_devices import COMMUNICATION
from placewire.optimizer.peers.compare import peers_of
from placewire.optimizer.peers.fsdp import fsdp_step
from placewire.optimizer.peers.step_parts import step_parts
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.simulation.bundles import PlacedStep
from placewire.optimizer.simulation.simulate import simulate
from placewire.optimizer.simulation.timeline import Timeline

# How many times slower each model runs, so that all its messages are large beside a frame.
SLOWER = {
    "alexnet 512": 400.0, "vgg16 512": 200.0, "bert 64": 100.0, "gpt2 64": 100.0,
    "mixture 64": 100.0,
}  # fmt: skip
SETTING = SlowMotion(servers=4, nics=2, gigabits=40.0, setup_latency_seconds=10e-6)
SOLVE_SECONDS = 60.0
# The first step does not count.
STEPS = 3
OURS, ALONE = "ours", "one device"
WAYS = (ALONE, *PEERS, OURS)
AIM = 0.05


def tables(pictures: Path | None) -> Iterable[Table]:
    placed = {(model, way): one for model in SLOWER for way, one in ways(model).items()}
    jobs = [
        Replay(f"{model}, {way}", one.graph, one.placement, STEPS)
        for (model, way), one in placed.items()
    ]
    measured = dict(zip(placed, replayed(jobs), strict=True))
    rows, errors = [], []
    for model in SLOWER:
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
        title=f"11. Ours beside what users would take, replayed on {SETTING.servers} servers x "
        f"{SETTING.nics} NICs",
        columns=("graph batch", *WAYS, "ratio"),
        rows=rows,
        notes=(
            f"Measured seconds of a step in slow motion ({_slower()} times), and how far they are "
            f"off the prediction; within {AIM:.0%} in {within} of {len(errors)} cases, "
            f"{max(map(abs, errors)):.1%} at worst. Medians of {STEPS - 1} steps after the first. "
            f"NICs stand for {SETTING.gigabits:g} Gbit/s, p0 for "
            f"{SETTING.setup_latency_seconds * 1e6:g} us; modelled times of {DEVICE}. Messages "
            f"take no time of devices. Ours: found in {SOLVE_SECONDS:g} s. Ratio: ours over the "
            "best of the others, measured.",
        ),
    )


def ways(model: str) -> Mapping[str, Placed]:
    """Every way that can run the model, by name."""
    setting = replace(SETTING, slower=SLOWER[model])
    graphs = setting.variants(model)
    slow, lab = [setting.slowed(graph) for graph in graphs], setting.lab()
    alone = place(Problem(slow[0], lab, sharing="job"), "single", SolveSettings())
    ours = solved(slow, lab, "job", SOLVE_SECONDS)["job"]
    return {ALONE: Placed(slow[0], alone), **peers_in_lab(graphs, setting), OURS: ours}


def _slower() -> str:
    return ", ".join(f"{model.split()[0]} {times:g}" for model, times in SLOWER.items())


def peers_in_lab(graphs: Sequence[OperatorGraph], setting: SlowMotion) -> dict[str, Placed]:
    """The best of each peer on fast NICs, as it runs in the lab. graphs: variants of one step."""
    found = {}
    steps = {step.name: step for step in peers_of(graphs, setting.fast, lambda line: None)}
    if "fsdp" in steps:
        parts = step_parts(_one_for_each(graphs, setting))
        steps["fsdp"] = fsdp_step(parts, setting.fast, only_rings=True)
    for name, step in steps.items():
        assert step.simulated is not None
        found[name] = _in_lab(name, *step.simulated, setting)
    return found


def _one_for_each(graphs: Sequence[OperatorGraph], setting: SlowMotion) -> OperatorGraph:
    """The variant with a micro-batch for each device and no shards."""
    return next(
        graph
        for graph in graphs
        if int(graph.micro_batch.max()) + 1 == setting.servers and graph.notes.get("shards", 1) == 1
    )


def _in_lab(name: str, problem: Problem, timeline: Timeline, setting: SlowMotion) -> Placed:
    """The same devices and order in the lab."""
    device = np.empty(problem.graph.operator_count, dtype=np.int64)
    priority = np.empty(len(device))
    for d, row in enumerate(timeline.order):
        device[list(row)], priority[list(row)] = d, -np.arange(len(row))
    graph = _with_waits_sent(setting.slowed(problem.graph), device)
    problem = replace(
        problem, graph=graph, cluster=_with_devices_of(problem.cluster, setting.lab())
    )
    timeline = simulate(problem, device, None, timeline.order)
    step = PlacedStep(graph, device, timeline.order)
    made = Bundled(Solution(device, priority, None), problem, step, timeline)
    alone = best_single(problem)
    placement = assemble(
        problem, made, lower_bound(problem), engine=name, reduction="none", seed=0, wall_seconds={},
        single_device_seconds=None if alone is None else alone[1],
    )  # fmt: skip
    return Placed(graph, placement)


def _with_devices_of(cluster: Cluster, lab: Cluster) -> Cluster:
    """The lab, in which servers have the devices of this cluster."""
    servers = [
        own.model_copy(update={"devices": server.devices})
        for own, server in zip(lab.servers, cluster.servers, strict=True)
    ]
    return lab.model_copy(update={"servers": tuple(servers)})


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
