"""Computes the peak memory of each device again, from the graph and recomputed times."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from placewire.optimizer.check.recompute.facts import Facts, GraphLists, Times

# (first, last, bytes): storage that lives from one position of a device's order to another.
LiveRange = tuple[int, int, int]


def recompute_memory(facts: Facts, times: Times) -> dict[str, int]:
    """Peak bytes per device: under `thesis` the static sum of its equation (3.2), else the largest
    sum, while an operator runs there, of weights, live storage, receive buffers and workspace."""
    sent_until: dict[int, float] = {}
    received: dict[str, list[int]] = defaultdict(list)
    for (e, device), at in times.arrival.items():
        sent_until[e] = max(sent_until.get(e, 0.0), at)
        received[device].append(e)
    peak: dict[str, int] = {}
    for device, order in facts.order.items():
        if facts.placement.model == "thesis":
            peak[device] = static_bytes(facts.lists, order)
            continue
        starts = [times.start[i] for i in order]
        peak[device] = peak_bytes(facts.lists, order, starts, sent_until, received[device])
    return peak


def static_bytes(lists: GraphLists, order: Sequence[int]) -> int:
    return sum(lists.weight[i] + lists.activation[i] + lists.workspace[i] for i in order)


def peak_bytes(
    lists: GraphLists,
    order: Sequence[int],
    starts: Sequence[float],
    sent_until: Mapping[int, float],
    received: Sequence[int],
) -> int:
    """Peak bytes of a device that starts order[k] at starts[k] and receives these tensors.
    sent_until: when the last send of each tensor ends."""
    opens, closes = [0] * (len(order) + 1), [0] * (len(order) + 1)
    for first, last, size in _live_ranges(lists, order, starts, sent_until, received):
        opens[first] += size
        closes[last + 1] += size
    live = peak = sum(lists.weight[i] for i in order)
    for k, i in enumerate(order):
        live += opens[k] - closes[k]
        peak = max(peak, live + lists.workspace[i])
    return peak


def _live_ranges(
    lists: GraphLists,
    order: Sequence[int],
    starts: Sequence[float],
    sent_until: Mapping[int, float],
    received: Sequence[int],
) -> Iterator[LiveRange]:
    """An operator's storage lives until its last reader here has run and its last send has ended; a
    view reads it as long as the view's own readers do. A receive buffer lives from the start."""
    place = {i: k for k, i in enumerate(order)}
    until: dict[int, int] = {}

    def last_reader(e: int) -> int:
        ends = [until[c] if lists.is_view(c) else place[c] for c in lists.readers[e] if c in place]
        return max(ends, default=-1)

    for k in range(len(order) - 1, -1, -1):
        i = order[k]
        last = k
        for e in lists.outputs[i]:
            if lists.size[e] == 0:
                continue
            last = max(last, last_reader(e))
            if e in sent_until:
                last = max(last, bisect.bisect_left(starts, sent_until[e]) - 1)
        until[i] = last
        yield place.get(lists.allocator(i), k), last, lists.activation[i]
    for e in received:
        yield 0, last_reader(e), lists.size[e]
