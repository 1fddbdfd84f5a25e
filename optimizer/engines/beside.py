"""Places the step of another bucket beside the first one's placement.

Both train the same parameters. So parameters and buffers, and what shares a device with them, stay
where the first placement has them; only devices that it uses take part; and where it decided rates
of pairs of servers, these hold. All else is searched as in any step: to the search it is a cluster
in which each device is of a type of its own, and an operator that must stay has times for one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.device_names import device_name
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import BrokenRuleError
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.graph.operator_graph import BUFFER, PARAMETER, OperatorGraph
from placewire.optimizer.placement import Placement, PlacementError
from placewire.optimizer.problem import Problem, SolveSettings

_HELD = (PARAMETER, BUFFER)


def place_beside(
    graph: OperatorGraph,
    first: Placement,
    settings: SolveSettings,
    progress: Report | None = None,
) -> Placement:
    """The best placement that engine `auto` finds, on the first one's cluster and under its
    sharing. Its bound is one of any placement of the graph, not only of those beside the first.

    Raises PlacementError where the first one lacks a parameter or buffer of the graph, and what
    `place` raises.
    """
    given = Problem(graph, first.cluster, first.sharing, first.model, first.backend, first.floor)
    pinned = pinned_devices(graph, first)
    problem = Problem(
        _with_times_per_device(graph, first.cluster, pinned, first.devices_used),
        _with_types_per_device(first.cluster),
        first.sharing, first.model, first.backend, first.floor,
    )  # fmt: skip
    if problem.decides_rates:
        problem = replace(problem, given_rates=first.rates)
    alike = _as_in_first(problem, first, pinned)
    # A bound for what stays where it is would be none of the graph as it was given.
    unproven = replace(settings, certify=0.0)
    found = place(problem, "auto", unproven, progress=progress, starts=[alike])
    return _of_the_problem(given, found)


def pinned_devices(graph: OperatorGraph, first: Placement) -> IntArray:
    """int64[n]: the device of each operator that must stay where the first placement has what it
    belongs to; -1: any. Raises PlacementError."""
    number = {name: d for d, name in enumerate(first.cluster.device_names)}
    pinned = np.full(graph.operator_count, -1, dtype=np.int64)
    for i in np.flatnonzero(np.isin(np.array(graph.types, dtype=object), _HELD)).tolist():
        if (device := first.operators.get(graph.ids[i])) is None:
            raise PlacementError(
                f"the first bucket's placement has no {graph.types[i]} {graph.ids[i]!r}: both must "
                "be of one model, cut in the same way"
            )
        pinned[i] = number[device]
    of_group = {
        group: device
        for group, device in zip(graph.colocation.tolist(), pinned.tolist(), strict=True)
        if group >= 0 and device >= 0
    }
    for i, group in enumerate(graph.colocation.tolist()):
        pinned[i] = of_group.get(group, pinned[i])
    return pinned


def _with_types_per_device(cluster: Cluster) -> Cluster:
    servers = tuple(
        server.model_copy(
            update={
                "devices": tuple(
                    device.model_copy(
                        update={"type": _type_of(device.type, device_name(server.name, k))}
                    )
                    for k, device in enumerate(server.devices)
                )
            }
        )
        for server in cluster.servers
    )
    return cluster.model_copy(update={"servers": servers})


def _type_of(device_type: str, device: str) -> str:
    return f"{device_type}:{device}"


def _with_times_per_device(
    graph: OperatorGraph, cluster: Cluster, pinned: IntArray, used: tuple[str, ...]
) -> OperatorGraph:
    columns = {}
    for d, (name, device) in enumerate(zip(cluster.device_names, cluster.devices, strict=True)):
        seconds = graph.seconds[:, graph.device_types.index(device.type)].copy()
        stays_elsewhere = (pinned >= 0) & (pinned != d)
        seconds[stays_elsewhere | (name not in used)] = np.inf
        columns[_type_of(device.type, name)] = seconds
    return graph.with_seconds(columns)


def _as_in_first(problem: Problem, first: Placement, pinned: IntArray) -> Solution:
    """Every operator where the first placement has the one of its id, and after the same ones."""
    graph, names = problem.graph, problem.cluster.device_names
    number = {name: d for d, name in enumerate(names)}
    turn = {name: k for order in first.order.values() for k, name in enumerate(order)}
    device, priority = pinned.copy(), np.zeros(graph.operator_count)
    of_group: dict[int, int] = {}
    otherwise = number[first.devices_used[0]]
    for i in graph.topological_order.tolist():
        before = graph.tensor_producer[graph.input_tensors(i)].tolist()
        if device[i] < 0:
            like = first.operators.get(graph.ids[i])
            device[i] = (
                number[like] if like is not None else device[before[-1]] if before else otherwise
            )
            if (group := int(graph.colocation[i])) >= 0:
                device[i] = of_group.setdefault(group, int(device[i]))
        after = max((-priority[k] for k in before), default=0.0)
        priority[i] = -float(turn.get(graph.ids[i], after))
    return Solution(device, priority, None)


def _of_the_problem(problem: Problem, found: Placement) -> Placement:
    """Says of the placement what holds for the graph and the cluster as they were given."""
    bound, alone = lower_bound(problem), best_single(problem)
    step = found.step_seconds
    placement = found.model_copy(
        update={
            "profile_digest": problem.graph.profile_digest,
            "cluster": problem.cluster,
            "bound_seconds": bound.seconds,
            "bound_reason": bound.reason,
            "gap": max(0.0, 1.0 - bound.seconds / step) if step > 0 else 0.0,
            "single_device_seconds": None if alone is None else alone[1],
        }
    )
    if violations := check(problem.graph, placement):
        raise BrokenRuleError(f"the placement beside another broke a rule: {violations[0]}")
    return placement
