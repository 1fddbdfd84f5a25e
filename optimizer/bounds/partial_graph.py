"""Cuts a part out of a large graph that is small enough for the exact search.

Leaving out an operator v of work p asks less of every schedule. What v asked of a predecessor u and
a successor w stays as an edge from u to w: at least near(u, v) + p + near(v, w) passes between
them. Where u and w are on two devices, v is not on the device of both, so that at least p and the
smaller of near(u, v) + far(v, w) and far(u, v) + near(v, w) passes. The heads and tails of the
whole graph hold for the kept operators. So no step is shorter than the least step of the part.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.bounds.exact_model import Machines
from placewire.optimizer.bounds.relaxation import Relaxation

# A left-out operator with more pairs of neighbours than this leaves no edges. That is admissible,
# as fewer edges ask less of a schedule.
_MOST_PAIRS = 150

_Edges = list[dict[int, tuple[float, float]]]


@dataclass(frozen=True)
class Part:
    """kept int64[k]: operators of the whole graph; where: which they are, in words. The model
    numbers its operators by their position in kept, in a part a topological order."""

    kept: IntArray
    where: str


def parts_of(relaxation: Relaxation, whole: int, size: int) -> Iterator[Part]:
    """The whole graph, where at most `whole` operators take time. Else parts of at most `size` such
    operators, the most promising first: those near either end of the step, where no other work can
    hide work and transfers, then those of most work."""
    if int((relaxation.work > 0).sum()) <= whole:
        yield Part(np.arange(relaxation.operators), "")
        return
    head, tail = relaxation.heads_and_tails
    yield Part(_largest(relaxation, np.maximum(head, tail), size), " near both ends of the step")
    yield Part(_largest(relaxation, relaxation.work, size), " of the longest operators")


def _largest(relaxation: Relaxation, key: FloatArray, size: int) -> IntArray:
    """The operators of largest key; at most `size` of them take time."""
    order = np.argsort(-key, kind="stable")
    count = np.searchsorted(np.cumsum(relaxation.work[order] > 0), size, side="right")
    kept = np.zeros(relaxation.operators, dtype=bool)
    kept[order[: min(int(count), 2 * size)]] = True
    return relaxation.order[kept[relaxation.order]]


def cut_out(relaxation: Relaxation, part: Part) -> Relaxation:
    """The part as a relaxation of its own, whose operators are numbered as in part.kept. Two more
    operators without work, its begin and its end, carry the heads and tails of the whole graph."""
    if len(part.kept) == relaxation.operators:
        return relaxation
    kept, count = part.kept, len(part.kept)
    head, tail = (times[kept] for times in relaxation.heads_and_tails)
    source, target, near, far = _edges_between(relaxation, kept)
    first, last, everyone = count, count + 1, np.arange(count)
    unit = np.unique(relaxation.unit[kept], return_inverse=True)[1].astype(np.int64)
    units = int(unit.max(initial=-1)) + 1
    return Relaxation(
        order=np.concatenate([[first], everyone, [last]]).astype(np.int64),
        work=np.concatenate([relaxation.work[kept], [0.0, 0.0]]),
        unit=np.concatenate([unit, [units, units + 1]]),
        source=np.concatenate([source, np.full(count, first), everyone]),
        target=np.concatenate([target, everyone, np.full(count, last)]),
        near=np.concatenate([near, head, tail]),
        far=np.concatenate([far, head, tail]),
        devices=relaxation.devices,
        group=np.concatenate([relaxation.group[kept], [-1, -1]]),
        clashes=relaxation.clashes,
    )


def _edges_between(
    relaxation: Relaxation, kept: IntArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """(source, target, near, far) between kept operators, numbered by their position in kept."""
    out = _eliminated(relaxation, kept)
    number = {i: k for k, i in enumerate(kept.tolist())}
    rows = [(number[u], number[v], *delay) for u in number for v, delay in out[u].items()]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    ends = table[:, :2].astype(np.int64)
    return ends[:, 0], ends[:, 1], table[:, 2], table[:, 3]


def _eliminated(relaxation: Relaxation, kept: IntArray) -> _Edges:
    """The successors of each kept operator with their delays, after all other operators were left
    out one by one, those with the fewest pairs of neighbours first."""
    into: _Edges = [{} for _ in range(relaxation.operators)]
    out: _Edges = [{} for _ in range(relaxation.operators)]
    for u, v, near, far in relaxation.edge_rows():
        out[u][v] = into[v][u] = (near, far)
    stays = np.zeros(relaxation.operators, dtype=bool)
    stays[kept] = True
    queue = [(len(into[v]) * len(out[v]), v) for v in np.flatnonzero(~stays).tolist()]
    heapq.heapify(queue)
    while queue:
        pairs, v = heapq.heappop(queue)
        now = len(into[v]) * len(out[v])
        if now > pairs:
            heapq.heappush(queue, (now, v))
            continue
        if now <= _MOST_PAIRS:
            _join_neighbours(into, out, v, float(relaxation.work[v]))
        for u in into[v]:
            del out[u][v]
        for w in out[v]:
            del into[w][v]
        into[v], out[v] = {}, {}
    return out


def _join_neighbours(into: _Edges, out: _Edges, v: int, work: float) -> None:
    for u, (near_in, far_in) in into[v].items():
        for w, (near_out, far_out) in out[v].items():
            near = near_in + work + near_out
            far = work + min(near_in + far_out, far_in + near_out)
            known = out[u].get(w, (0.0, 0.0))
            out[u][w] = into[w][u] = (max(known[0], near), max(known[1], far))


def machines_for(machines: Machines, part: Part, whole: int) -> Machines:
    """The same machines for the operators of `cut_out`, in their order."""
    if len(part.kept) == whole:
        return machines
    free = np.zeros((2, machines.count))
    seconds = np.concatenate([machines.seconds[part.kept], free])
    held_bytes = np.concatenate([machines.held_bytes[part.kept], [0, 0]])
    return replace(machines, seconds=seconds, held_bytes=held_bytes)
