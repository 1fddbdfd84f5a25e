"""A binary heap of (key, item) in a slice of two flat arrays; smallest key first, then item."""

from __future__ import annotations

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled


@compiled
def push(keys: FloatArray, items: IntArray, base: int, size: int, key: float, item: int) -> int:
    """Adds an entry to the slice that begins at `base` and holds `size`; returns the new size."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // 2
        other = base + parent
        if keys[other] < key or (keys[other] == key and items[other] < item):
            break
        keys[base + hole] = keys[other]
        items[base + hole] = items[other]
        hole = parent
    keys[base + hole] = key
    items[base + hole] = item
    return size + 1


@compiled
def pop(keys: FloatArray, items: IntArray, base: int, size: int) -> int:
    """Drops the first entry, which the caller has read; returns the new size."""
    size -= 1
    key = keys[base + size]
    item = items[base + size]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        left, right = base + child, base + child + 1
        if child + 1 < size and (
            keys[right] < keys[left] or (keys[right] == keys[left] and items[right] < items[left])
        ):
            child += 1
        below = base + child
        if key < keys[below] or (key == keys[below] and item < items[below]):
            break
        keys[base + hole] = keys[below]
        items[base + hole] = items[below]
        hole = child
    if size > 0:
        keys[base + hole] = key
        items[base + hole] = item
    return size
