"""Sets of units that a move takes together: chains along tensors, and balls of near units."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.kernels.compiled import compiled


@compiled
def chains(following: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray]:
    """CSR rows (start, members): the units met from each unit on along following int64[units] (-1:
    none), one row for each of the ascending lengths.

    There is no row where the chain ends before that length. A unit met twice stands in a row once.
    """
    count, longest = len(following), lengths[-1]
    start = np.zeros(count * len(lengths) + 1, dtype=np.int64)
    members = np.empty(count * lengths.sum(), dtype=np.int64)
    rows, filled = 0, 0
    chain = np.empty(longest, dtype=np.int64)
    met = np.full(count, -1, dtype=np.int64)
    for u in range(count):
        size, at, steps, wanted = 0, u, 0, 0
        while at >= 0 and steps < longest:
            steps += 1
            if met[at] != u:
                met[at] = u
                chain[size] = at
                size += 1
            if steps == lengths[wanted]:
                for k in range(size):
                    members[filled + k] = chain[k]
                filled += size
                rows += 1
                start[rows] = filled
                wanted += 1
            at = following[at]
    return start[: rows + 1], members[:filled]


@compiled
def balls(near_start: IntArray, near: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
    """CSR rows (start, members): each unit with its nearest others, found breadth first along CSR
    neighbour lists that name the nearest first. One row per unit and size, sizes ascending, where
    so many units can be reached."""
    count, largest = len(near_start) - 1, sizes[-1]
    start = np.zeros(count * len(sizes) + 1, dtype=np.int64)
    members = np.empty(count * sizes.sum(), dtype=np.int64)
    rows, filled = 0, 0
    ball = np.empty(largest, dtype=np.int64)
    met = np.full(count, -1, dtype=np.int64)
    for u in range(count):
        ball[0], size, center = u, 1, 0
        met[u] = u
        while center < size < largest:
            for k in range(near_start[ball[center]], near_start[ball[center] + 1]):
                v = near[k]
                if met[v] != u and size < largest:
                    met[v] = u
                    ball[size] = v
                    size += 1
            center += 1
        for wanted in sizes:
            if size < wanted:
                break
            for k in range(wanted):
                members[filled + k] = ball[k]
            filled += wanted
            rows += 1
            start[rows] = filled
    return start[: rows + 1], members[:filled]
