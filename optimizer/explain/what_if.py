"""What would shorten a step: the same placement and orders, simulated on changed clusters.

Nothing is guessed: each change is one simulation, a device more is a lower bound. The orders are
kept, so that a new search could use a change better than is shown here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate

# As good as a network that takes no time; and what rates may be at most (bits per second).
_FREE, _FASTEST = 1e6, 1e18
_MOST_DEVICES = 8


@dataclass(frozen=True)
class Change:
    """what: in words; step_seconds: of the same placement after it."""

    what: str
    step_seconds: float


@dataclass(frozen=True)
class PlacementArrays:
    """A placement as numbers: device int64[n], operators per device in order, rates [S, S, R]."""

    device: IntArray
    order: Sequence[Sequence[int]]
    rates: FloatArray


def changes(problem: Problem, decision: PlacementArrays, devices: Sequence[int]) -> list[Change]:
    """Network and devices, each improved alone. devices: those worth trying, the best first."""
    cluster = problem.cluster
    found = []
    if len({int(d) for d in decision.device}) > 1:
        for what, rate, latency in (
            ("every NIC and link twice as fast", 2.0, 1.0),
            ("no setup latency", 1.0, 0.0),
        ):
            found.append(_with_network(problem, decision, what, rate, latency))
    for d in devices[:_MOST_DEVICES]:
        name = cluster.device_names[d]
        step = _step(_faster_device(problem, d), decision, decision.rates)
        found.append(Change(f"{name} twice as fast", step))
    return found


def without_network(problem: Problem, decision: PlacementArrays) -> Change:
    """What no network could beat for this placement and its orders."""
    return _with_network(problem, decision, "a network that takes no time at all", _FREE, 0.0)


def _with_network(
    problem: Problem, decision: PlacementArrays, what: str, rate: float, latency: float
) -> Change:
    """rate times every rate, latency times every setup latency."""
    changed = replace(problem, cluster=_network(problem.cluster, rate, latency))
    return Change(what, _step(changed, decision, decision.rates * rate))


def bound_with_another_device(problem: Problem) -> Change:
    """What no placement can be below with a device more: in the server, where there is one of
    several devices, else in another server like the last (which no link joins to the others)."""
    servers = problem.cluster.servers
    last = servers[-1]
    if len(servers) == 1 and len(last.devices) > 1:
        grown = last.model_copy(update={"devices": (*last.devices, last.devices[0])})
        larger = _cluster(problem.cluster, servers=(grown,))
        what = f"one more device in {last.name}"
    else:
        names = {server.name for server in servers}
        name = next(f"more{k}" for k in range(len(names) + 1) if f"more{k}" not in names)
        another = last.model_copy(update={"name": name})
        larger = _cluster(problem.cluster, servers=(*servers, another))
        what = f"one more server like {last.name}"
    return Change(what, lower_bound(replace(problem, cluster=larger)).seconds)


def _step(problem: Problem, decision: PlacementArrays, rates: FloatArray) -> float:
    return simulate(problem, decision.device, order=decision.order, rates=rates).step_seconds


def _cluster(cluster: Cluster, **change: Any) -> Cluster:
    """A new value: a copy would keep what the old one has cached."""
    return Cluster(**{**{name: getattr(cluster, name) for name in Cluster.model_fields}, **change})


def _network(cluster: Cluster, rate: float, latency: float) -> Cluster:
    def faster(row: Any, **more: Any) -> Any:
        scaled = min(row.rate_bits_per_second * rate, _FASTEST)
        return row.model_copy(update={"rate_bits_per_second": scaled, **more})

    return _cluster(
        cluster,
        servers=tuple(
            server.model_copy(update={"nics": tuple(map(faster, server.nics))})
            for server in cluster.servers
        ),
        setup_latency_seconds=cluster.setup_latency_seconds * latency,
        intra_server_bits_per_second=min(cluster.intra_server_bits_per_second * rate, _FASTEST),
        links=tuple(
            faster(link, setup_latency_seconds=link.setup_latency_seconds * latency)
            for link in cluster.links
        ),
    )


def _faster_device(problem: Problem, index: int) -> Problem:
    """One device gets a type of its own, of half the seconds."""
    graph, old = problem.graph, problem.cluster.devices[index].type
    name = next(f"{old} x{k}" for k in _counting() if f"{old} x{k}" not in graph.device_types)
    columns = {t: graph.seconds[:, k] for k, t in enumerate(graph.device_types)}
    position = iter(range(len(problem.cluster.devices)))
    servers = tuple(
        server.model_copy(
            update={
                "devices": tuple(
                    device.model_copy(update={"type": name}) if next(position) == index else device
                    for device in server.devices
                )
            }
        )
        for server in problem.cluster.servers
    )
    return replace(
        problem,
        graph=graph.with_seconds({**columns, name: columns[old] / 2}),
        cluster=_cluster(problem.cluster, servers=servers),
    )


def _counting() -> Iterator[int]:
    k = 2
    while True:
        yield k
        k += 1


def busiest_devices(problem: Problem, decision: PlacementArrays) -> list[int]:
    """Those that run something, the longest busy first."""
    seconds = problem.seconds[np.arange(len(decision.device)), decision.device]
    busy = np.bincount(decision.device, weights=seconds, minlength=len(problem.cluster.devices))
    return [int(d) for d in np.argsort(-busy, kind="stable") if busy[d] > 0]
