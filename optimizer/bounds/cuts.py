"""Bounds by volume: the bytes that must leave and enter some server or pod, by minimum cuts.

Let S be the operators on the server of one unit A, in any placement. For weights l, o, i >= 0 that
sum to 1 and any price q >= 0 per byte,

    step - before - after >= l work(S) / devices + o out(S) / N + i in(S) / N
                          >= that + q (held(S) - M)

where N is the NICs' rate of the best server, M the largest memory of a server and `devices` the
most devices of a server; each of work, out and in fits into the step by itself. out(S) counts each
tensor once that is made in S and read outside, in(S) each that is made outside and read in S: the
server sends and receives it at least once. Where only out and in count (l = 0), no such byte moves
`before` the first producer ends nor `after` the last consumer starts; else both are 0. The right
side plus q M is a cut between A and all that is not on its server: an operator in S pays
l work / devices + q held, a tensor that leaves pays o bits / N, one that enters i bits / N. So the
minimum cut less q M bounds the step over all S. The bound says something where memory keeps S from
being everything. Where a unit B fits into no server together with A, S lacks B, and the minimum cut
between the two bounds the step without a price. The same holds of pods in the place of servers,
with their uplinks in the place of NICs.

There is no such bound for clusters with links, which bypass the NICs, and under `thesis` and `msr`,
whose transfers never meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.bounds.bound import Bound
from placewire.optimizer.bounds.relaxation import Relaxation, nic_capacities
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.problem import Problem

# The weights (work, out, in); and prices of all held bytes, as parts of the cost of all tensors.
_WEIGHTS = ((0.0, 0.5, 0.5), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.4, 0.3, 0.3))
_PRICES = (0.05, 0.1, 0.2, 0.5, 1.5)
# So many units that hold most are tried as A and B. In a graph with more operators than
# _LARGE_OPERATORS only the first is tried as A, at fewer weights.
_UNITS, _LARGE_OPERATORS = 4, 4_000
_SCALE = 10**12


@dataclass(frozen=True)
class _Regions:
    """Servers, or pods: the most that any of them sends in bits per second, its most bytes of
    memory and its most devices. reason: why bytes must cross."""

    rate: float
    memory: float
    devices: int
    reason: str


@dataclass(frozen=True)
class _Network:
    """Nodes: units 0..U-1, then two for each tensor that crosses units. Arcs go from tail to head.
    out_seconds, in_seconds: of the tensor that an arc stands for; fixed: arcs that no cut cuts."""

    nodes: int
    tail: IntArray
    head: IntArray
    out_seconds: FloatArray
    in_seconds: FloatArray
    fixed: BoolArray


def cut_bound(problem: Problem, relaxation: Relaxation, held_bytes: IntArray) -> Bound:
    """0 seconds where memory forces no traffic, or no cut costs anything."""
    found = Bound(0.0, "memory forces nothing over the network")
    if problem.model != "contended" or problem.cluster.links:
        return found
    for regions in _regions(problem):
        if held_bytes.sum() > regions.memory and regions.rate > 0:
            found = max(found, _cut_around(regions, problem, relaxation, held_bytes), key=_seconds)
    return found


def _seconds(bound: Bound) -> float:
    return bound.seconds


def _regions(problem: Problem) -> Iterator[_Regions]:
    cluster = problem.cluster
    nics = nic_capacities(problem).sum(axis=1)
    server = "volume that must cross one server's NICs: none has memory for all"
    yield _regions_of(cluster, cluster.server_of_device, nics, server)
    if cluster.pods:
        pod_of_device = cluster.pod_of_server[cluster.server_of_device]
        pod = "volume that must cross one pod's uplinks: none has memory for all"
        yield _regions_of(cluster, pod_of_device, cluster.uplink_rates.sum(axis=1), pod)


def _regions_of(cluster: Cluster, of_device: IntArray, rates: FloatArray, reason: str) -> _Regions:
    memory = float(np.bincount(of_device, weights=cluster.memory_bytes).max())
    devices = int(np.bincount(of_device).max())
    return _Regions(float(rates.max(initial=0.0)), memory, devices, reason)


def _cut_around(
    regions: _Regions, problem: Problem, relaxation: Relaxation, held_bytes: IntArray
) -> Bound:
    memory, devices = regions.memory, regions.devices
    held = np.bincount(relaxation.unit, weights=held_bytes, minlength=relaxation.units)
    work = np.bincount(relaxation.unit, weights=relaxation.work, minlength=relaxation.units)
    network = _network(problem, relaxation, regions.rate)
    around = _around(problem, relaxation)
    large = relaxation.operators > _LARGE_OPERATORS
    most = np.argsort(-held, kind="stable")[:_UNITS].tolist()
    best = 0.0
    for a in most[: 1 if large else None]:
        never_with = [b for b in most if b != a and held[a] + held[b] > memory]
        for load, out, into in _WEIGHTS[: 2 if large else None]:
            before_and_after = around if load == 0 else 0.0
            share = load * work / devices
            for b in never_with:
                best = max(best, _least_cut(network, a, b, share, out, into) + before_and_after)
            whole = float(network.out_seconds.sum()) / float(held.sum())
            for price in (p * whole for p in _PRICES):
                cut = _least_cut(network, a, None, share + price * held, out, into)
                best = max(best, cut - price * memory + before_and_after)
    return Bound(best, regions.reason)


def _least_cut(
    network: _Network, inside: int, outside: int | None, paid: FloatArray, out: float, into: float
) -> float:
    """Seconds of the least cut that has unit `inside` on the server and unit `outside`, if there is
    one, elsewhere; `paid` float64[U] seconds for each unit on the server. Rounded down."""
    from ortools.graph.python.max_flow import SimpleMaxFlow

    sink = network.nodes
    seconds = np.where(network.fixed, 0.0, out * network.out_seconds + into * network.in_seconds)
    total = max(float(seconds.sum() + paid.sum()), 1e-300)
    capacity = np.floor(seconds / total * _SCALE).astype(np.int64)
    capacity[network.fixed] = 2 * _SCALE
    price = np.floor(paid / total * _SCALE).astype(np.int64)
    if outside is not None:
        price[outside] = 2 * _SCALE
    units = np.arange(len(paid))
    flow = SimpleMaxFlow()
    flow.add_arcs_with_capacity(
        np.concatenate([network.tail, units]),
        np.concatenate([network.head, np.full(len(units), sink)]),
        np.concatenate([capacity, price]),
    )
    if flow.solve(inside, sink) != flow.OPTIMAL:
        return 0.0
    return float(flow.optimal_flow()) / _SCALE * total


def _around(problem: Problem, relaxation: Relaxation) -> float:
    """Seconds of a step before the first and after the last byte that can be sent."""
    graph, (head, tail) = problem.graph, relaxation.heads_and_tails
    source, target, tensor = graph.edges
    sized = graph.tensor_bytes[tensor] > 0
    made = (head + relaxation.work)[source[sized]]
    read = (tail + relaxation.work)[target[sized]]
    return float(made.min() + read.min()) if sized.any() else 0.0


def _network(problem: Problem, relaxation: Relaxation, rate: float) -> _Network:
    """Per tensor e of bits b, with nodes x and y: producer -> x costs b to cut, x -> consumers is
    never cut (x leaves S with any consumer); consumers -> y never, y -> producer costs b."""
    graph, unit = problem.graph, relaxation.unit
    source, target, tensor = graph.edges
    crossing = (unit[source] != unit[target]) & (graph.tensor_bytes[tensor] > 0)
    tensor, reader = tensor[crossing], unit[target[crossing]]
    known, place = np.unique(tensor, return_inverse=True)
    maker = unit[graph.tensor_producer[known]]
    seconds = graph.tensor_bytes[known] * 8.0 / rate
    x = relaxation.units + np.arange(len(known))
    y = x + len(known)
    none, nothing = np.zeros(len(reader)), np.zeros(len(known))
    is_fixed, is_cut = np.ones(len(reader), dtype=bool), np.zeros(len(known), dtype=bool)
    return _Network(
        relaxation.units + 2 * len(known),
        np.concatenate([maker, x[place], y, reader]),
        np.concatenate([x, reader, maker, y[place]]),
        np.concatenate([seconds, none, nothing, none]),
        np.concatenate([nothing, none, seconds, none]),
        np.concatenate([is_cut, is_fixed, is_cut, is_fixed]),
    )
