"""Earliest time first: the list scheduling that `m-etf`, `m-sct` and `getf` have in common.

Hwang, Chow, Anger, Lee: "Scheduling precedence graphs in systems with interprocessor communication
times" (SIAM J. Computing 18(2), 1989): of all pairs of a ready operator and a device, the pair with
the earliest start is next. A tie goes to the operator with the longer path behind it (the paper's
static level; here the upward rank), then to the lower device.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.engines.device_capacity import DeviceCapacities
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.transfer_times import transfer_times
from placewire.optimizer.engines.units import typical_transfer_seconds, upward_rank
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.engines.shared.deadline import Deadline
from placewire.optimizer.published.engines.shared.ready_queue import ReadyQueue


class EarliestTimeFirst:
    """`run` may be called once.

    groups: bool rows [n][D], the devices that each operator may go to, the same for all operators
    of a co-location group; None: all devices.
    favourite: for each operator the child that should follow it on its device, -1 for none; None:
    no operator has one. While the favourite child of a device's last operator is not placed, the
    device is *awake*: it takes this child as soon as the child is ready, and another operator only
    once that operator is urgent, which means that its inputs could have arrived on every device.
    """

    def __init__(
        self,
        problem: Problem,
        capacities: DeviceCapacities,
        until: Deadline,
        *,
        groups: list[list[bool]] | None = None,
        favourite: list[int] | None = None,
    ) -> None:
        graph = problem.graph
        self.problem, self.capacities, self.until = problem, capacities, until
        self.groups = groups
        self.favourite = [-1] * graph.operator_count if favourite is None else favourite
        self.devices = range(len(problem.cluster.devices))
        self.urgency: list[float] = upward_rank(problem, typical_transfer_seconds(problem)).tolist()
        self.seconds = problem.seconds.tolist()
        self.setup, self.per_byte = transfer_times(problem).table()
        self.start = [0.0] * graph.operator_count
        self.finish = [0.0] * graph.operator_count
        self.missing: list[int] = np.diff(graph.inputs[0]).tolist()
        self.ready_at: dict[int, list[float]] = {}
        self.free = [0.0] * len(self.devices)
        self.last = [-1] * len(self.devices)
        self.queues = [ReadyQueue(self.urgency) for _ in self.devices]
        self.urgent = [ReadyQueue(self.urgency) for _ in self.devices]

    def run(self) -> Solution | None:
        """None where no device can take an operator. Raises OutOfTimeError."""
        for i, count in enumerate(self.missing):
            if count == 0:
                self._becomes_ready(i)
        for k in range(len(self.missing)):
            self.until.require("earliest time first", k)
            pairs = [pair for d in self.devices if (pair := self._candidate(d)) is not None]
            if not pairs:
                return None
            at, _, d, i = min(pairs)
            self._place(i, d, at)
        device = np.array(self.capacities.device, dtype=np.int64)
        return Solution(device, -np.array(self.start), None)

    def _candidate(self, d: int) -> tuple[float, float, int, int] | None:
        """(start, minus urgency, d, operator) of what device d would run next."""

        def stays(i: int) -> bool:
            return self.capacities.device[i] < 0 and self._may_go(i, d)

        awaited = self.favourite[self.last[d]] if self.last[d] >= 0 else -1
        if awaited < 0 or self.capacities.device[awaited] >= 0 or not self._may_go(awaited, d):
            found = self.queues[d].first(self.free[d], stays)
        else:
            found = self.urgent[d].first(self.free[d], stays)
            if awaited in self.ready_at:
                at = max(self.free[d], self.ready_at[awaited][d])
                found = (at, awaited) if found is None or at <= found[0] else found
        return None if found is None else (found[0], -self.urgency[found[1]], d, found[1])

    def _may_go(self, i: int, d: int) -> bool:
        return (self.groups is None or self.groups[i][d]) and self.capacities.takes(i, d)

    def _place(self, i: int, d: int, at: float) -> None:
        graph = self.problem.graph
        self.capacities.put(i, d)
        self.start[i], self.finish[i] = at, at + self.seconds[i][d]
        self.free[d], self.last[d] = self.finish[i], i
        for e in graph.output_tensors(i).tolist():
            for j in graph.tensor_consumers(e).tolist():
                self.missing[j] -= 1
                if self.missing[j] == 0:
                    self._becomes_ready(j)

    def _becomes_ready(self, i: int) -> None:
        graph, at = self.problem.graph, [0.0] * len(self.devices)
        for e in graph.input_tensors(i).tolist():
            j, size = int(graph.tensor_producer[e]), int(graph.tensor_bytes[e])
            a = self.capacities.device[j]
            for d in self.devices:
                took = self.setup[a][d] + size * self.per_byte[a][d] if size and d != a else 0.0
                at[d] = max(at[d], self.finish[j] + took)
        self.ready_at[i] = at
        # The inputs cannot reach a device where at is inf: it is the last choice.
        everywhere = max((came for came in at if came < np.inf), default=np.inf)
        for d in self.devices:
            self.queues[d].add(at[d], i)
            self.urgent[d].add(max(everywhere, at[d]), i)
