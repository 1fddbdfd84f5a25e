"""Step time and memory of a placement file, computed again in plain Python for `check`.

Nothing here is shared with the simulator or the engines. The messages, their shares and the rates
are taken from the file, so that a wrong file shows as a wrong time.
"""

from __future__ import annotations

import bisect
from collections import defaultdict

from optimizer.placement import Message
from optimizer.recompute_facts import INFINITY, Facts, Times
from optimizer.recompute_fluid import fluid_times


def recompute_times(facts: Facts) -> Times | None:
    """None where the orders wait for each other for ever."""
    if facts.placement.model == "thesis":
        return _orderly(facts, queue=False)
    if facts.placement.sharing == "unshaped":
        return fluid_times(facts)
    return _orderly(facts, queue=True)


def _orderly(facts: Facts, *, queue: bool) -> Times | None:
    """Rates are fixed: each operator once, when what it waits for is known."""
    start: dict[int, float] = {}
    finish: dict[int, float] = {}
    arrival: dict[tuple[int, str], float] = {}
    channel: dict[tuple[str, str, str], float] = defaultdict(float)
    inputs: list[list[int]] = [[] for _ in facts.graph.ids]
    for e, readers in enumerate(facts.readers):
        for c in readers:
            inputs[c].append(e)
    position = dict.fromkeys(facts.order, 0)
    clock = dict.fromkeys(facts.order, 0.0)
    moved = True
    while moved:
        moved = False
        for device, order in facts.order.items():
            while position[device] < len(order):
                i = order[position[device]]
                if any(facts.maker[e] not in finish for e in inputs[i]):
                    break
                ready = [arrival.get((e, device), finish[facts.maker[e]]) for e in inputs[i]]
                start[i] = max([clock[device], *ready])
                finish[i] = clock[device] = start[i] + facts.seconds(i)
                position[device] += 1
                moved = True
                for e in facts.outputs[i]:
                    for target in {facts.device_of[c] for c in facts.readers[e]}:
                        if (message := facts.message.get((e, target))) is not None:
                            arrival[e, target] = (
                                _queued(facts, message, finish[i], channel)
                                if queue
                                else finish[i] + _alone(facts, message)
                            )
    return Times(start, finish, arrival) if len(finish) == len(facts.graph.ids) else None


def _queued(
    facts: Facts, message: Message, now: float, channel: dict[tuple[str, str, str], float]
) -> float:
    arrived = now
    parts = [rail for rail, share in message.rails.items() if share > 0] or [""]
    for rail in parts:
        key = (message.source, message.destination, rail)
        channel[key] = max(channel[key], now) + facts.message_seconds(message, rail)
        arrived = max(arrived, channel[key])
    return arrived


def _alone(facts: Facts, message: Message) -> float:
    """Thesis (3.5): p0 + bytes / b, with b the sum over the rails."""
    cluster = facts.placement.cluster
    source, destination = facts.server_of[message.source], facts.server_of[message.destination]
    if source == destination:
        rate = cluster.intra_server_bits_per_second
    else:
        rate = sum(x for (s, t, _), x in facts.rate.items() if (s, t) == (source, destination))
    took = message.bytes * 8 / rate if rate > 0 else INFINITY
    return cluster.setup_latency_seconds + took


def recompute_memory(facts: Facts, times: Times) -> dict[str, int]:
    """Peak bytes per device: the static sum of thesis (3.2) under `thesis`, else the peak over the
    operators that run there of weights, live storages, receive buffers and workspace."""
    graph = facts.graph
    peak: dict[str, int] = {}
    for device, order in facts.order.items():
        weights = sum(int(graph.weight_bytes[i]) for i in order)
        if facts.placement.model == "thesis":
            activations = sum(int(graph.activation_bytes[i]) for i in order)
            peak[device] = weights + activations
            peak[device] += sum(int(graph.workspace_bytes[i]) for i in order)
            continue
        ranges = _live_ranges(facts, times, device, order)
        opens, closes = [0] * (len(order) + 1), [0] * (len(order) + 1)
        for first, last, size in ranges:
            opens[first] += size
            closes[last + 1] += size
        live = peak[device] = weights
        for k, i in enumerate(order):
            live += opens[k] - closes[k]
            peak[device] = max(peak[device], live + int(graph.workspace_bytes[i]))
    return peak


def _live_ranges(
    facts: Facts, times: Times, device: str, order: list[int]
) -> list[tuple[int, int, int]]:
    """(first, last, bytes) in positions of the device's order, both ends included."""
    graph = facts.graph
    place = {i: k for k, i in enumerate(order)}
    starts = [times.start[i] for i in order]
    until: dict[int, int] = {}
    arrivals: dict[int, list[float]] = defaultdict(list)
    for (e, _), at in times.arrival.items():
        arrivals[e].append(at)

    def last_reader(e: int) -> int:
        ends = [
            until[c] if _is_view(facts, c) else place[c] for c in facts.readers[e] if c in place
        ]
        return max(ends, default=-1)

    ranges = []
    for i in sorted(order, key=lambda i: place[i], reverse=True):
        last = place[i]
        for e in facts.outputs[i]:
            if facts.size[e] == 0:
                continue
            last = max(last, last_reader(e))
            sends = arrivals.get(e, [])
            if sends:
                last = max(last, bisect.bisect_left(starts, max(sends)) - 1)
        until[i] = last
        ranges.append((place[i], last, int(graph.activation_bytes[i])))
    for e, target in facts.message:
        if target == device:
            ranges.append((0, last_reader(e), facts.size[e]))
    return ranges


def _is_view(facts: Facts, operator: int) -> bool:
    allocates = int(facts.graph.activation_bytes[operator]) > 0
    return not allocates and any(facts.size[e] > 0 for e in facts.outputs[operator])
