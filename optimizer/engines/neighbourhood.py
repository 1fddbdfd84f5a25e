"""The sets of operators that one annealing move may take to another device together."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray, row_starts
from placewire.optimizer.engines.blocks import places_in, repeated_blocks
from placewire.optimizer.engines.layering import spectral_order, tail_groups
from placewire.optimizer.engines.units import unit_of_operator, unit_rows
from placewire.optimizer.kernels.annealing.neighbours import balls, chains
from placewire.optimizer.kernels.annealing.proposals import Neighbourhood
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.fusion import fuse, operator_delay
from placewire.optimizer.reductions.written_updates import written_updates

_CHAIN_LENGTHS = (2, 4, 16)
_BALL_SIZES = (5, 12, 30)
_STRETCHES = (8, 24, 80, 240)
_ALPHA_QUANTILES = (0.0, 0.5, 0.8)
# With more operators, fusion at several thresholds takes seconds, and the other sets must suffice.
_FUSE_UP_TO = 20_000

# Sets as CSR: (start int64[sets + 1], members int64[...]).
Rows = tuple[IntArray, IntArray]


def make_neighbourhood(problem: Problem) -> Neighbourhood:
    """Single units, pairs of producer and consumer, chains along the consumer of the largest
    tensor, the clusters that operator fusion finds at several thresholds, balls around units,
    stretches of the order that runs through the model, the tails of the main chain, updates that
    are written out, and the repeated blocks. Units are whole co-location groups, so no move
    separates one."""
    unit = unit_of_operator(problem)
    unit_start, unit_members = unit_rows(unit)
    count = len(unit_start) - 1
    rows: list[Rows] = [(np.arange(count + 1), np.arange(count))]
    rows += _along_tensors(problem, unit, count)
    rows += [*_stretches(spectral_order(problem.graph, unit)), _tails(problem, unit)]
    rows.append(_updates(problem, unit))
    if problem.graph.operator_count <= _FUSE_UP_TO:
        rows.append(_clusters(problem, unit))
    start, units = _joined(rows, count)
    start, members = _operators(start, units, unit_start, unit_members)
    of_start, of_sets = _transposed(start, members, problem.graph.operator_count)
    table = np.ascontiguousarray(repeated_blocks(problem.graph))
    places = places_in(table, problem.graph.operator_count)
    return Neighbourhood(
        start, members, of_start, of_sets, unit, unit_start, unit_members, table, *places
    )


def _along_tensors(problem: Problem, unit: IntArray, count: int) -> list[Rows]:
    """Pairs, chains and balls along edges between units; the largest tensor comes first."""
    graph = problem.graph
    source, target, tensor = graph.edges
    u, v, size = unit[source], unit[target], graph.tensor_bytes[tensor]
    between = u != v
    u, v, size = u[between], v[between], size[between]
    pairs = np.unique(np.sort(np.stack([u, v], axis=1), axis=1), axis=0)
    found: list[Rows] = [(np.arange(0, pairs.size + 1, 2), pairs.reshape(-1))]
    following = np.full(count, -1, dtype=np.int64)
    order = np.argsort(size, kind="stable")
    following[u[order]] = v[order]  # of several assignments the last stays, the largest tensor's
    found.append(chains(following, np.array(_CHAIN_LENGTHS)))
    ends = np.concatenate([u, v]), np.concatenate([v, u]), np.concatenate([size, size])
    order = np.lexsort((ends[1], -ends[2], ends[0]))
    found.append(balls(row_starts(ends[0], count), ends[1][order], np.array(_BALL_SIZES)))
    return found


def _stretches(order: IntArray) -> list[Rows]:
    """Windows of the order that overlap by half, of several sizes."""
    found = []
    for size in _STRETCHES:
        first = np.arange(0, max(len(order) - size + 1, 0), size // 2)
        units = order[(first[:, None] + np.arange(size)[None, :]).reshape(-1)]
        found.append((np.arange(0, len(units) + 1, size, dtype=np.int64), units))
    return found


def _tails(problem: Problem, unit: IntArray) -> Rows:
    rows = [np.unique(unit[group]) for group in tail_groups(problem.graph)]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return start, np.concatenate([np.empty(0, dtype=np.int64), *rows])


def _updates(problem: Problem, unit: IntArray) -> Rows:
    """The updates that are written out, each with its weight."""
    number = written_updates(problem.graph)
    inside = np.flatnonzero(number >= 0)
    pairs = np.unique(np.stack([number[inside], unit[inside]], axis=1), axis=0)
    return row_starts(pairs[:, 0], int(number.max(initial=-1)) + 1), pairs[:, 1]


def _clusters(problem: Problem, unit: IntArray) -> Rows:
    starts, units = [np.zeros(1, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    delays = operator_delay(problem)
    quantiles = _ALPHA_QUANTILES if len(delays) else ()
    for alpha in sorted({float(np.quantile(delays, q)) for q in quantiles}):
        small, undo = fuse(problem, alpha)
        fused = small.graph.operator_count
        home, _ = undo(np.arange(fused, dtype=np.int64), np.zeros(fused))
        pairs = np.unique(np.stack([home, unit], axis=1), axis=0)
        sizes = np.bincount(pairs[:, 0], minlength=fused)
        starts.append(np.cumsum(sizes) + starts[-1][-1])
        units.append(pairs[:, 1])
    return np.concatenate(starts), np.concatenate(units)


def _joined(rows: list[Rows], count: int) -> Rows:
    """All sets, except those of several units that are more than half of the graph: to move such a
    set hardly differs from renaming the devices."""
    lengths = np.concatenate([np.diff(start) for start, _ in rows])
    flat = np.concatenate([units for _, units in rows])
    kept = (lengths == 1) | ((2 * lengths <= count) & (lengths > 0))
    start = np.zeros(int(kept.sum()) + 1, dtype=np.int64)
    np.cumsum(lengths[kept], out=start[1:])
    return start, flat[np.repeat(kept, lengths)].astype(np.int64)


def _operators(
    start: IntArray, units: IntArray, unit_start: IntArray, unit_members: IntArray
) -> Rows:
    """Sets of units as sets of their operators."""
    sizes = np.diff(unit_start)[units]
    ends = np.cumsum(sizes)
    offset = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    members = unit_members[np.repeat(unit_start[units], sizes) + offset]
    return np.concatenate([[0], ends])[start].astype(np.int64), members


def _transposed(start: IntArray, members: IntArray, n: int) -> Rows:
    """The sets that each operator is in, as CSR by operator."""
    which = np.repeat(np.arange(len(start) - 1), np.diff(start))
    return row_starts(members, n), which[np.argsort(members, kind="stable")].astype(np.int64)
