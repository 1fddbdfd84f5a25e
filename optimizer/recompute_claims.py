"""What a placement file claims beside its own schedule, computed again for `check`: the best single
device and how low a bound may be. In plain Python, from the graph and the cluster only."""

from __future__ import annotations

import math

from optimizer.graph import OperatorGraph
from optimizer.placement import Placement
from optimizer.recompute import recompute_memory
from optimizer.recompute_facts import Facts, Times


def recompute_best_single(graph: OperatorGraph, placement: Placement) -> float | None:
    """Step seconds of everything on the fastest device that has memory for it, in the recorded
    topological order; None where there is no such device."""
    best: float | None = None
    of_type: dict[str, tuple[float, int]] = {}
    for name, device in zip(placement.cluster.device_names, placement.cluster.devices, strict=True):
        if device.type not in of_type:
            of_type[device.type] = _alone(graph, placement, name)
        step, peak = of_type[device.type]
        if math.isfinite(step) and peak <= device.memory_bytes and (best is None or step < best):
            best = step
    return best


def _alone(graph: OperatorGraph, placement: Placement, device: str) -> tuple[float, int]:
    """(step seconds, peak bytes); devices of one type differ in neither."""
    order = graph.topological_order.tolist()
    everything = placement.model_copy(
        update={
            "operators": dict.fromkeys(graph.ids, device),
            "order": {device: tuple(graph.ids[i] for i in order)},
            "messages": (),
        }
    )
    facts = Facts(graph, everything)
    start: dict[int, float] = {}
    finish: dict[int, float] = {}
    clock = 0.0
    for i in order:
        start[i] = clock
        finish[i] = clock = clock + facts.seconds(i)
    return clock, recompute_memory(facts, Times(start, finish, {}))[device]


def least_bound(graph: OperatorGraph, placement: Placement) -> float:
    """The larger of two bounds that anyone can add up: the longest path with each operator at its
    fastest, and all fastest times spread evenly over the devices. A lower claim than this is not
    what the optimizer proves."""
    types = {device.type for device in placement.cluster.devices}
    columns = [k for k, name in enumerate(graph.device_types) if name in types]
    fastest: list[float] = [min(row[k] for k in columns) for row in graph.seconds.tolist()]
    finish = list(fastest)
    for i in graph.topological_order.tolist():
        for e in graph.output_tensors(i).tolist():
            for j in graph.tensor_consumers(e).tolist():
                finish[j] = max(finish[j], finish[i] + fastest[j])
    return max(max(finish, default=0.0), sum(fastest) / len(placement.cluster.devices))
