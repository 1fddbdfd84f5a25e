"""A list scheduler in plain Python: the yardstick for the compiled one."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np

from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES
from placewire.optimizer.problem import Problem


def list_schedule(
    problem: Problem, device: np.ndarray, priority: np.ndarray, rates: np.ndarray
) -> float:
    """Step seconds under `contended` with strict rates and one device per server; a free device
    runs its ready operator of largest priority."""
    graph, setup = problem.graph, problem.cluster.setup_latency_seconds
    seconds, where, urgency = problem.seconds.tolist(), device.tolist(), priority.tolist()
    outputs = [graph.output_tensors(i).tolist() for i in range(graph.operator_count)]
    readers = [graph.tensor_consumers(e).tolist() for e in range(graph.tensor_count)]
    size = graph.tensor_bytes.tolist()
    missing = [len(graph.input_tensors(i)) for i in range(graph.operator_count)]
    ready: list[list[tuple[float, int]]] = [[] for _ in problem.cluster.devices]
    idle = [True] * len(ready)
    channel: dict[tuple[int, int, int], float] = defaultdict(float)
    # (time, 0: an operator finished or 1: a tensor arrived, which one, device)
    events: list[tuple[float, int, int, int]] = []
    now = step = 0.0

    def satisfied(i: int) -> None:
        missing[i] -= 1
        if missing[i] == 0:
            heapq.heappush(ready[where[i]], (-urgency[i], i))

    for i in [i for i, count in enumerate(missing) if count == 0]:
        heapq.heappush(ready[where[i]], (-urgency[i], i))
    while True:
        for d, queue in enumerate(ready):
            if idle[d] and queue:
                i = heapq.heappop(queue)[1]
                idle[d] = False
                heapq.heappush(events, (now + seconds[i][d], 0, i, d))
        if not events:
            return step
        now = events[0][0]
        while events and events[0][0] == now:
            _, kind, who, d = heapq.heappop(events)
            if kind == 1:
                for c in [c for c in readers[who] if where[c] == d]:
                    satisfied(c)
                continue
            idle[d] = True
            step = max(step, now)
            for e in outputs[who]:
                here = [c for c in readers[e] if where[c] == d or size[e] == 0]
                for c in here:
                    satisfied(c)
                for b in dict.fromkeys(where[c] for c in readers[e] if c not in here):
                    pair = rates[d, b].tolist()
                    arrival = _send(channel, (d, b), pair, size[e], setup, now)
                    heapq.heappush(events, (arrival, 1, e, b))


def _send(
    channel: dict[tuple[int, int, int], float],
    ends: tuple[int, int],
    pair: list[float],
    size: int,
    setup: float,
    now: float,
) -> float:
    """Sends first come, first served on each rail; a small message takes only the fastest rail."""
    rails = [r for r, rate in enumerate(pair) if rate > 0]
    if size < CUT_THRESHOLD_BYTES:
        rails = [max(range(len(pair)), key=pair.__getitem__)]
    total = sum(pair[r] for r in rails)
    arrival = 0.0
    for r in rails:
        begin = max(now + setup, channel[*ends, r])
        channel[*ends, r] = begin + size * 8 / total
        arrival = max(arrival, channel[*ends, r])
    return arrival
