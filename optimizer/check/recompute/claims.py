"""Computes again the best single device, and the least bound that a placement may state.

In plain Python, from the graph and the cluster only.
"""

from __future__ import annotations

import math

from placewire.optimizer.check.recompute.facts import Facts
from placewire.optimizer.check.recompute.memory import peak_bytes, static_bytes


def recompute_best_single(facts: Facts) -> float | None:
    """Step seconds of the whole graph on the fastest device that has memory for it, in the recorded
    topological order; None where no device has."""
    best: float | None = None
    of_type: dict[str, tuple[float, int]] = {}
    for device in facts.placement.cluster.devices:
        if device.type not in facts.graph.device_types:
            continue
        if device.type not in of_type:
            of_type[device.type] = _alone(facts, device.type)
        step, peak = of_type[device.type]
        if math.isfinite(step) and peak <= device.memory_bytes and (best is None or step < best):
            best = step
    return best


def _alone(facts: Facts, device_type: str) -> tuple[float, int]:
    """(step seconds, peak bytes) on any device of this type."""
    lists = facts.lists
    order = facts.graph.topological_order.tolist()
    column = facts.graph.device_types.index(device_type)
    starts: list[float] = []
    clock = 0.0
    for i in order:
        starts.append(clock)
        clock += lists.seconds[i][column]
    if facts.placement.model == "thesis":
        return clock, static_bytes(lists, order)
    return clock, peak_bytes(lists, order, starts, {}, ())


def least_bound(facts: Facts) -> float:
    """The larger of two bounds that anyone can add up: the longest path with each operator at its
    fastest, and all fastest times spread evenly over the devices. The optimizer never states a
    lower bound than this."""
    lists, placement = facts.lists, facts.placement
    types = {device.type for device in placement.cluster.devices}
    columns = [k for k, name in enumerate(facts.graph.device_types) if name in types]
    fastest: list[float] = [min(row[k] for k in columns) for row in lists.seconds]
    finish = list(fastest)
    for i in facts.graph.topological_order.tolist():
        for e in lists.outputs[i]:
            for j in lists.readers[e]:
                finish[j] = max(finish[j], finish[i] + fastest[j])
    return max(max(finish, default=0.0), sum(fastest) / len(placement.cluster.devices))
