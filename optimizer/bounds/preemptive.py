"""The preemptive relaxation: work that may be stopped and go on anywhere, between heads and tails.

In a schedule within T an operator runs after its head and early enough for its tail. In any piece
of time operators of one unit, which share a device, run for no longer than the piece together, and
all operators for no longer than the devices have. Which parts of which operators could run in which
piece is a flow from operators over units to pieces (Horn 1974, "Some simple scheduling algorithms",
section 4, has operators without units). Where no flow has all the work, no schedule is within T.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray

# Pieces of time; more of them sharpen the bound little. Pieces of a step are counted in ticks.
_PIECES = 80
_TICKS = 10**7


def fits(
    head: FloatArray, work: FloatArray, tail: FloatArray, unit: IntArray, devices: int, step: float
) -> bool:
    """Whether the flow has all the work within `step` seconds. head, work, tail float64[n], unit
    int64[n]: operators of one unit share a device. False means that no schedule exists."""
    from ortools.graph.python.max_flow import SimpleMaxFlow

    busy = np.flatnonzero(work > 0)
    begin, end = head[busy], step - tail[busy]
    times = np.unique(np.clip(np.concatenate([begin, end, [0.0, step]]), 0.0, step))
    levels = np.linspace(0.0, 1.0, _PIECES + 1)
    times = np.unique(np.quantile(times, levels, method="nearest"))
    first, last = times[:-1], times[1:]
    pieces, ticks = len(first), _TICKS / step
    operator, piece = np.nonzero((begin[:, None] < last) & (end[:, None] > first))
    shared = np.unique(unit[busy], return_inverse=True)[1][operator] * pieces + piece
    shared, place = np.unique(shared, return_inverse=True)
    # All roundings are on the safe side: less work, more room.
    needed = np.floor(work[busy] * ticks * (1 - 1e-9)).astype(np.int64)
    room = np.ceil((last - first) * ticks).astype(np.int64) + 1
    of_operator = 2 + np.arange(len(busy))
    of_unit = 2 + len(busy) + np.arange(len(shared))
    of_piece = 2 + len(busy) + len(shared) + np.arange(pieces)
    flow = SimpleMaxFlow()
    flow.add_arcs_with_capacity(
        np.concatenate([np.zeros(len(busy)), of_operator[operator], of_unit, of_piece]).astype(int),
        np.concatenate([of_operator, of_unit[place], of_piece[shared % pieces], np.ones(pieces)])
        .astype(int),
        np.concatenate([needed, room[piece], room[shared % pieces], devices * room]),
    )  # fmt: skip
    if flow.solve(0, 1) != flow.OPTIMAL:
        return True
    return bool(flow.optimal_flow() >= needed.sum())
