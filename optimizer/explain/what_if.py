"""Computes what would shorten a step: simulates a placement on changed clusters.

Each change is one simulation; one device more is a lower bound. Devices and orders are kept, so
that a new search could profit more from a change than is shown here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate

# The factor for a network that takes practically no time, and the highest rate in bits per second.
_FREE, _FASTEST = 1e6, 1e18
_MOST_DEVICES = 8


@dataclass(frozen=True)
class Change:
    """what: the change in words; step_seconds: the same placement's step after it."""

    what: str
    step_seconds: float


@dataclass(frozen=True)
class PlacementArrays:
    """device int64[n]; order: the operators of each device; rates float64[S, S, R]."""

    device: IntArray
    order: Sequence[Sequence[int]]
    rates: FloatArray


def changes(problem: Problem, decision: PlacementArrays, devices: Sequence[int]) -> list[Change]:
    """Improves the network and each of the devices, one at a time. devices: the best first."""
    found = []
    if len(set(decision.device.tolist())) > 1:
        pods = bool(problem.cluster.pods)
        what = "every NIC, link and uplink" if pods else "every NIC and link"
        found.append(_with_network(problem, decision, f"{what} twice as fast", 2.0, 1.0))
        if pods:
            found.append(_with_uplinks(problem, decision))
        found.append(_with_network(problem, decision, "no setup latency", rate=1.0, latency=0.0))
        if problem.message_seconds > 0.0 or problem.message_seconds_per_byte > 0.0:
            step = _step(_free_messages(problem), decision, decision.rates)
            found.append(Change("messages that take no time of devices", step))
    for d in devices[:_MOST_DEVICES]:
        step = _step(_faster_device(problem, d), decision, decision.rates)
        found.append(Change(f"{problem.cluster.device_names[d]} twice as fast", step))
    return found


def without_network(problem: Problem, decision: PlacementArrays) -> Change:
    """The limit of what any network could do for this placement and its orders."""
    return _with_network(problem, decision, "a network that takes no time at all", _FREE, 0.0)


def _free_messages(problem: Problem) -> Problem:
    free = {"message_seconds": 0.0, "message_seconds_per_byte": 0.0}
    return replace(problem, cluster=problem.cluster.model_copy(update=free))


def _with_network(
    problem: Problem, decision: PlacementArrays, what: str, rate: float, latency: float
) -> Change:
    """rate, latency: factors for every rate and every setup latency."""
    changed = replace(problem, cluster=_network(problem.cluster, rate, latency))
    return Change(what, _step(changed, decision, decision.rates * rate))


def _with_uplinks(problem: Problem, decision: PlacementArrays) -> Change:
    """Pairs with decided rates in different pods get twice as much, as far as NICs allow."""
    changed = replace(problem, cluster=_faster_uplinks(problem.cluster, 2.0))
    pod = problem.cluster.pod_of_server
    apart = (pod[:, None] != pod[None, :])[:, :, None]
    rates = changed.limits.within(np.where(apart, 2.0, 1.0) * decision.rates)
    return Change("every uplink twice as fast", _step(changed, decision, rates))


def bound_with_another_device(problem: Problem) -> Change:
    """A lower bound with one device more: in the server where there is only one, which has several,
    else in another server like the last, which no link joins to the others."""
    servers, pods = problem.cluster.servers, problem.cluster.pods
    last = servers[-1]
    if len(servers) == 1 and len(last.devices) > 1:
        servers = (last.model_copy(update={"devices": (*last.devices, last.devices[0])}),)
        what = f"one more device in {last.name}"
    else:
        names = {server.name for server in servers}
        name = next(name for k in count() if (name := f"more{k}") not in names)
        servers = (*servers, last.model_copy(update={"name": name}))
        what = f"one more server like {last.name}"
        pods = tuple(
            pod.model_copy(update={"servers": (*pod.servers, name)})
            if last.name in pod.servers
            else pod
            for pod in pods
        )
    cluster = problem.cluster.model_copy(update={"servers": servers, "pods": pods})
    return Change(what, lower_bound(replace(problem, cluster=cluster)).seconds)


def _step(problem: Problem, decision: PlacementArrays, rates: FloatArray) -> float:
    return simulate(problem, decision.device, order=decision.order, rates=rates).step_seconds


def _faster(row: Any, factor: float, **more: Any) -> Any:
    """row: of a cluster, with a rate."""
    scaled = min(row.rate_bits_per_second * factor, _FASTEST)
    return row.model_copy(update={"rate_bits_per_second": scaled, **more})


def _faster_uplinks(cluster: Cluster, factor: float) -> Cluster:
    pods = tuple(
        pod.model_copy(update={"uplinks": tuple(_faster(one, factor) for one in pod.uplinks)})
        for pod in cluster.pods
    )
    return cluster.model_copy(update={"pods": pods})


def _network(cluster: Cluster, rate: float, latency: float) -> Cluster:
    changed = {
        "servers": tuple(
            server.model_copy(update={"nics": tuple(_faster(nic, rate) for nic in server.nics)})
            for server in cluster.servers
        ),
        "setup_latency_seconds": cluster.setup_latency_seconds * latency,
        "intra_server_bits_per_second": min(cluster.intra_server_bits_per_second * rate, _FASTEST),
        "links": tuple(
            _faster(link, rate, setup_latency_seconds=link.setup_latency_seconds * latency)
            for link in cluster.links
        ),
    }
    return _faster_uplinks(cluster.model_copy(update=changed), rate)


def _faster_device(problem: Problem, index: int) -> Problem:
    """The problem with one device of a new type that takes half the time."""
    graph, old = problem.graph, problem.cluster.devices[index].type
    name = next(t for k in count(2) if (t := f"{old} x{k}") not in graph.device_types)
    columns = {t: graph.seconds[:, k] for k, t in enumerate(graph.device_types)}
    devices = iter(
        device.model_copy(update={"type": name}) if d == index else device
        for d, device in enumerate(problem.cluster.devices)
    )
    servers = tuple(
        server.model_copy(update={"devices": tuple(islice(devices, len(server.devices)))})
        for server in problem.cluster.servers
    )
    return replace(
        problem,
        graph=graph.with_seconds({**columns, name: columns[old] / 2}),
        cluster=problem.cluster.model_copy(update={"servers": servers}),
    )


def busiest_devices(problem: Problem, decision: PlacementArrays) -> list[int]:
    """The devices that run something, the busiest first."""
    seconds = problem.seconds[np.arange(len(decision.device)), decision.device]
    busy = np.bincount(decision.device, weights=seconds, minlength=len(problem.cluster.devices))
    return [int(d) for d in np.argsort(-busy, kind="stable") if busy[d] > 0]
