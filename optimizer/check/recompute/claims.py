"""Computes again the best single device, and the least bound that a placement may state.

In plain Python, from the graph and the cluster only.
"""

from __future__ import annotations

import math

from placewire.optimizer.check.recompute.facts import Facts, GraphLists
from placewire.optimizer.check.recompute.memory import peak_bytes, static_bytes
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import Model
from placewire.optimizer.placement import Placement


def recompute_best_single(
    graph: OperatorGraph, lists: GraphLists, placement: Placement
) -> float | None:
    """Step seconds of the whole graph on the fastest device that has memory for it, in the recorded
    topological order; None where no device has. lists: of the graph, without bundles. placement:
    its cluster and model count."""
    devices = placement.cluster.devices
    types = {device.type for device in devices}.intersection(graph.device_types)
    alone = {name: _alone(graph, lists, placement.model, name) for name in types}
    runs = [(*alone[d.type], d.memory_bytes) for d in devices if d.type in alone]
    steps = [step for step, peak, memory in runs if math.isfinite(step) and peak <= memory]
    return min(steps, default=None)


def _alone(
    graph: OperatorGraph, lists: GraphLists, model: Model, device_type: str
) -> tuple[float, int]:
    """(step seconds, peak bytes) on any device of this type."""
    order = graph.topological_order.tolist()
    column = graph.device_types.index(device_type)
    starts: list[float] = []
    clock = 0.0
    for i in order:
        starts.append(clock)
        clock += lists.seconds[i][column]
    if model == "thesis":
        return clock, static_bytes(lists, order)
    return clock, peak_bytes(lists, order, starts, {}, ())


def least_bound(facts: Facts) -> float:
    """The larger of two bounds that anyone can add up: the longest path with each operator at its
    fastest, and all fastest times spread over the devices. The optimizer states no lower bound."""
    lists, placement = facts.given, facts.placement
    types = {device.type for device in placement.cluster.devices}
    columns = [k for k, name in enumerate(facts.graph.device_types) if name in types]
    fastest: list[float] = [min(row[k] for k in columns) for row in lists.seconds]
    finish = list(fastest)
    for i in facts.graph.topological_order.tolist():
        for e in lists.outputs[i]:
            for j in lists.readers[e]:
                finish[j] = max(finish[j], finish[i] + fastest[j])
    return max(max(finish, default=0.0), sum(fastest) / len(placement.cluster.devices))
