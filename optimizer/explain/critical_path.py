"""Finds the critical path: the operators, transfers and waits that make a step as long as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.timeline import Timeline, TimelineMessage

# Two events are at the same time where they are nearer than this part of the step.
_SAME = 1e-9


@dataclass(frozen=True)
class Segment:
    """compute: `operator` runs on `device`, which is also `source`. transfer: its output is under
    way from `source` to `device`. wait: that output is ready, but others are sent first. rails: the
    share of the message's bytes on each rail of the cluster; () past the NICs, and of compute."""

    kind: Literal["compute", "transfer", "wait"]
    start_seconds: float
    finish_seconds: float
    operator: int
    source: int
    device: int
    rails: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        return self.finish_seconds - self.start_seconds


def critical_path(problem: Problem, device: IntArray, timeline: Timeline) -> tuple[Segment, ...]:
    """From the step's start to its end without gaps: each segment begins when the one before ends.

    The path is walked back from the operator that finishes last. An operator waited for the one
    before it on its device, or for its last input. () for an empty graph.
    """
    if not problem.graph.operator_count:
        return ()
    waits = _Waits(problem, device, timeline)
    operator = int(timeline.finish.argmax())
    found: list[Segment] = []
    while operator >= 0:
        start, finish = float(timeline.start[operator]), float(timeline.finish[operator])
        d = int(device[operator])
        found.append(Segment("compute", start, finish, operator, d, d))
        operator, message = waits.cause(operator)
        if message is not None:
            way = message.source, message.destination, message.rails
            sent, came = message.start_seconds, message.finish_seconds
            found.append(Segment("transfer", sent, came, operator, *way))
            if sent > message.queued_seconds:
                found.append(Segment("wait", message.queued_seconds, sent, operator, *way))
    return tuple(reversed(found))


class _Waits:
    def __init__(self, problem: Problem, device: IntArray, timeline: Timeline) -> None:
        self.problem, self.device, self.timeline = problem, device, timeline
        self.messages: Mapping[tuple[int, int], TimelineMessage] = {
            (message.tensor, message.destination): message for message in timeline.messages
        }
        self.before = np.full(problem.graph.operator_count, -1, dtype=np.int64)
        for order in timeline.order:
            self.before[list(order[1:])] = list(order[:-1])

    def cause(self, operator: int) -> tuple[int, TimelineMessage | None]:
        """(the operator that it waited for or -1, the message that brought that one's output)."""
        graph, finish = self.problem.graph, self.timeline.finish
        same = _SAME * self.timeline.step_seconds
        if self.timeline.start[operator] <= same:
            return -1, None
        best, carried = int(self.before[operator]), None
        latest = float(finish[best]) if best >= 0 else -1.0
        for tensor in graph.input_tensors(operator).tolist():
            producer = int(graph.tensor_producer[tensor])
            message = self.messages.get((tensor, int(self.device[operator])))
            came = float(finish[producer]) if message is None else message.finish_seconds
            # In a tie with the device's own work, that work is the cause: it came first anyway.
            if came > latest + same:
                best, latest, carried = producer, came, message
        return best, carried
