"""The contention-free relaxation: a problem whose least step no placement, order or rates undercut.

An operator takes its fastest time. A tensor that is read on another device than its producer's
takes its sender's time for a message, and what the best connected pair of devices needs, with
nothing else on the network; one that is read on its producer's device takes no time. Operators of
one device run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray, row_starts
from placewire.optimizer.kernels.graphs.heads import earliest_starts
from placewire.optimizer.network.nics import capacity_of
from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES
from placewire.optimizer.problem import InfeasibleError, Problem

# How many ancestors of an operator its head considers, and how many descendants its tail.
_ANCESTORS = 32
# With fewer operators, heads or tails take less time than a thread is worth.
_ON_TWO_CORES_FROM = 20_000


@dataclass(frozen=True)
class Relaxation:
    """order int64[n]: a topological one; work float64[n]: fastest seconds; unit int64[n], 0..U-1:
    operators of one unit share a device; source, target int64[k]: edges, each pair once; near, far
    float64[k]: least seconds from the source's end to the target's start where both are on one
    device, and where they are on two (inf: they must share one); devices: how many there are;
    group int64[n], -1 for none, and clashes bool[k, k]: operators of groups that clash are never on
    one device; is_turn bool[k], where a device runs its operators in the order: which edges say
    only that of operators of one unit (`with_turns`); None where devices keep to no order."""

    order: IntArray
    work: FloatArray
    unit: IntArray
    source: IntArray
    target: IntArray
    near: FloatArray
    far: FloatArray
    devices: int
    group: IntArray
    clashes: BoolArray
    is_turn: BoolArray | None = None

    @property
    def operators(self) -> int:
        return len(self.order)

    @cached_property
    def units(self) -> int:
        return int(self.unit.max(initial=-1)) + 1

    @property
    def takes_turns(self) -> bool:
        return self.is_turn is not None

    @cached_property
    def heads_and_tails(self) -> tuple[FloatArray, FloatArray]:
        """Least seconds before each operator's start and after its end, float64[n] each."""

        def starts(
            known: FloatArray, order: IntArray, start: IntArray, source: IntArray,
            near: FloatArray, far: FloatArray,
        ) -> FloatArray:  # fmt: skip
            return earliest_starts(
                order, self.work, start, source, near, far, self.unit, self.group, self.clashes,
                known, _ANCESTORS,
            )  # fmt: skip

        # Where a long unit takes turns, those before an operator in it would be all ancestors that
        # are considered, and hide what it reads from other devices.
        known = np.zeros((2, self.operators))
        if self.is_turn is not None:
            known = np.stack(self._without(self.is_turn).heads_and_tails)
        backwards = np.ascontiguousarray(self.order[::-1])
        sides = (
            (known[0], self.order, *self.edges_by_target),
            (known[1], backwards, *self.edges_by_source),
        )
        if self.operators < _ON_TWO_CORES_FROM:
            forward, backward = starmap(starts, sides)
        else:
            with ThreadPoolExecutor(len(sides)) as pool:
                forward, backward = pool.map(starts, *zip(*sides, strict=True))
        return forward, backward

    @cached_property
    def edges_by_target(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """(start int64[n + 1], source, near, far): edges into v are start[v]:start[v + 1]."""
        return self._edges_by(self.target, self.source)

    @cached_property
    def edges_by_source(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """(start int64[n + 1], target, near, far): edges out of u are start[u]:start[u + 1]."""
        return self._edges_by(self.source, self.target)

    def edge_rows(self) -> Iterator[tuple[int, int, float, float]]:
        """(source, target, near, far) of each edge."""
        columns = self.source, self.target, self.near, self.far
        return zip(*(column.tolist() for column in columns), strict=True)

    def _without(self, is_turn: BoolArray) -> Relaxation:
        rest = ~is_turn
        return replace(
            self, source=self.source[rest], target=self.target[rest], near=self.near[rest],
            far=self.far[rest], is_turn=None,
        )  # fmt: skip

    def _edges_by(
        self, end: IntArray, other: IntArray
    ) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        order = np.argsort(end, kind="stable")
        start = row_starts(end, self.operators)
        return start, other[order], self.near[order], self.far[order]

    @cached_property
    def members_by_head(self) -> tuple[IntArray, IntArray]:
        """(operators by unit, within a unit by head; int64[U + 1]: where each unit's begin)."""
        by_unit = np.lexsort((self.heads_and_tails[0], self.unit))
        return by_unit, row_starts(self.unit, self.units)

    @cached_property
    def members_by_turn(self) -> tuple[IntArray, IntArray, IntArray]:
        """(each operator's place in the order, operators by unit, within a unit by place;
        int64[U + 1]: where each unit's begin)."""
        place = np.empty(self.operators, dtype=np.int64)
        place[self.order] = np.arange(self.operators)
        return place, np.lexsort((place, self.unit)), row_starts(self.unit, self.units)

    @cached_property
    def path_seconds(self) -> float:
        """The longest head, work and tail of any operator."""
        head, tail = self.heads_and_tails
        return float((head + self.work + tail).max(initial=0.0))

    def with_units(self, unit: IntArray, near: FloatArray, far: FloatArray) -> Relaxation:
        return replace(self, unit=unit, near=near, far=far)

    def with_clashes(self, group: IntArray, clashes: BoolArray) -> Relaxation:
        return replace(self, group=group, clashes=clashes)


def relax(problem: Problem) -> Relaxation:
    """Raises InfeasibleError where an operator can run on no device of the cluster."""
    graph = problem.graph
    fastest = problem.seconds.min(axis=1)
    if not np.isfinite(fastest).all():
        name = graph.ids[int(np.argmax(~np.isfinite(fastest)))]
        raise InfeasibleError(
            f"operator {name!r} has no time on any device type of the cluster; profile it on one"
        )
    source, target, tensor = graph.edges
    source, target, far = merged_edges(source, target, crossing_seconds(problem)[tensor])
    key = np.where(graph.colocation >= 0, graph.colocation, -1 - np.arange(len(fastest)))
    unit = np.unique(key, return_inverse=True)[1].astype(np.int64)
    far = np.where(unit[source] == unit[target], np.inf, far)
    return Relaxation(
        order=np.ascontiguousarray(graph.topological_order),
        work=np.ascontiguousarray(fastest),
        unit=unit,
        source=source,
        target=target,
        near=np.zeros(len(source)),
        far=far,
        devices=len(problem.cluster.devices),
        group=np.full(len(fastest), -1, dtype=np.int64),
        clashes=np.zeros((0, 0), dtype=bool),
    )


def merged_edges(
    source: IntArray, target: IntArray, seconds: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """The edges with each (source, target) once, with the largest of its seconds."""
    source, target, seconds, _ = both_merged(source, target, seconds, seconds)
    return source, target, seconds


def both_merged(
    source: IntArray, target: IntArray, near: FloatArray, far: FloatArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """As merged_edges, of edges with two delays."""
    if not len(source):
        return source.astype(np.int64), target.astype(np.int64), near, far
    order = np.lexsort((target, source))
    source, target, near, far = source[order], target[order], near[order], far[order]
    new = np.ones(len(source), dtype=bool)
    new[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    first = np.flatnonzero(new)
    delays = np.maximum.reduceat(near, first), np.maximum.reduceat(far, first)
    return source[first], target[first], *delays


def crossing_seconds(problem: Problem) -> FloatArray:
    """float64[m]: the least time of each tensor from the end of its operator's own work to its
    arrival on another device; 0 for tensors of 0 bytes, inf where no two devices are connected.

    A message occupies its sender before it leaves, alone or in a bundle. Under `contended` a tensor
    below CUT_THRESHOLD_BYTES takes one rail, or all as part of a bundle that is large enough."""
    size = problem.graph.tensor_bytes
    contended = problem.model == "contended"
    cut = np.maximum(size, CUT_THRESHOLD_BYTES) if contended else size
    seconds = np.full(len(size), np.inf)
    for setup, rate, rail_rate in _connections(problem):
        whole = size * 8.0 / rail_rate if contended else np.inf
        seconds = np.minimum(seconds, setup + np.minimum(cut * 8.0 / rate, whole))
    seconds += problem.message_seconds + problem.message_seconds_per_byte * size
    return np.where(size > 0, seconds, 0.0)


def _connections(problem: Problem) -> list[tuple[float, float, float]]:
    """(setup seconds, bits per second, bits per second of a message that takes one rail) of every
    kind of connection between two devices."""
    server, past = problem.cluster.server_of_device, problem.paths
    pairs = server_pair_rates(problem)
    over_rails = past.rate == 0
    between = server[:, None], server[None, :]
    rate = np.where(over_rails, pairs.sum(axis=2)[between], past.rate)
    rail_rate = np.where(over_rails, pairs.max(axis=2, initial=0.0)[between], past.rate)
    setup = np.where(over_rails, problem.cluster.setup_latency_seconds, past.setup)
    apart = ~np.eye(len(server), dtype=bool)
    kinds = np.unique(np.stack([setup[apart], rate[apart], rail_rate[apart]], axis=1), axis=0)
    return [(p0, a, b) for p0, a, b in kinds.tolist() if b > 0]


def server_pair_rates(problem: Problem) -> FloatArray:
    """float64[S, S, R]: the most that a pair of servers can get on each rail; 0 within a server."""
    return problem.policy.most_pair_rates(capacity_of(problem.cluster, nic_capacities(problem)))


def nic_capacities(problem: Problem) -> FloatArray:
    """float64[S, R]: the most that the job carries on each NIC, in each direction."""
    return problem.policy.most_nic_rates(problem.cluster, problem.floor)
