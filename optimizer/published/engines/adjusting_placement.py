"""Engine `adjusting-placement`: Celeritas' placer.

Xu, Xie, Liao, Zhou: "Celeritas: fast optimizer for large dataflow graphs" (2022), section 5.2,
algorithm 2 and equations 7 to 9, and 6.1. In the order of CPD-TOPO, an operator stays on the device
of the operator before it, unless another device could start it earlier by more than it takes to
send its largest output back. Where no device has room, the device with the lowest memory usage
takes the operator (as the paper's text says; line 18 of the algorithm says the opposite). A
transfer is a task of its own on both devices that it joins, one at a time on each (6.1), so that
congestion is seen. The method runs on the graph that the paper's own fusion makes (5.1), unless
another reduction is asked for.

The paper proves that no step of the algorithm starts an operator's successors later than
Order-Place would, and concludes that its placements are never longer. The first holds here; the
second does not: a successor goes where the operator before it went, unless it gains more than
sending back takes, and may so be kept away from its other inputs. The tests have a graph of four
operators on which Adjusting Placement takes 19 where Order-Place takes 15.

Chosen where the paper leaves it open: the device before the first operator is the first device that
can run it; a transfer starts when its tensor is there and both devices are free, in the order in
which operators are placed; a tensor is sent to a device once.
"""

from __future__ import annotations

import math

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.device_capacity import DeviceCapacities, within_memory
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.transfer_times import transfer_times
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.time_slots import TimeSlots
from placewire.optimizer.published.reductions.topological import cpd_topo


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group can run on no device, and OutOfTimeError."""
    name = "adjusting-placement"
    until = deadline(name, settings)
    order = cpd_topo(problem)
    return within_memory(
        problem, name, lambda capacities: Placer(problem, capacities).run(order, until)
    )


class Placer:
    """`run` may be called once."""

    def __init__(self, problem: Problem, capacities: DeviceCapacities) -> None:
        graph = problem.graph
        self.graph, self.capacities = graph, capacities
        self.devices = range(len(problem.cluster.devices))
        self.seconds = problem.seconds.tolist()
        self.setup, self.per_byte = transfer_times(problem).table()
        self.start = [0.0] * graph.operator_count
        self.finish = [0.0] * graph.operator_count
        self.slots = [TimeSlots() for _ in self.devices]
        # Until when each device sends or receives for the operators placed so far.
        self.wire = [0.0] * len(self.devices)
        # When a tensor that is sent arrives, by (tensor, device).
        self.arrived: dict[tuple[int, int], float] = {}

    def run(self, order: IntArray, until: Deadline) -> Solution:
        before = 0
        for k, i in enumerate(order.tolist()):
            until.require("adjusting placement", k)
            before = self._choose(i, before)
            self._place(i, before)
        device = np.array(self.capacities.device, dtype=np.int64)
        return Solution(device, -np.array(self.start), None)

    def _choose(self, i: int, before: int) -> int:
        """The device of operator i: lines 5 to 18 of algorithm 2."""
        # (7): an operator starts when its inputs have arrived and the device is free.
        earliest = [
            self.slots[d].earliest(self._transfers(i, d)[0], self.seconds[i][d])
            if self.capacities.takes(i, d)
            else math.inf
            for d in self.devices
        ]
        best = min(self.devices, key=earliest.__getitem__)
        if earliest[best] == math.inf:
            return self.capacities.roomiest(i)
        # (8): the largest output goes from the best device to the one before.
        sizes = self.graph.tensor_bytes[self.graph.output_tensors(i)].tolist()
        back = max((self._seconds(size, best, before) for size in sizes), default=0.0)
        return best if earliest[before] - earliest[best] > back else before

    def _seconds(self, size: int, a: int, b: int) -> float:
        return self.setup[a][b] + size * self.per_byte[a][b] if size and a != b else 0.0

    def _transfers(self, i: int, d: int) -> tuple[float, list[float], dict[tuple[int, int], float]]:
        """(when all inputs are on d, until when each device's wire is then busy, the new entries of
        `arrived`) if operator i goes to device d."""
        graph, wire, sent = self.graph, list(self.wire), dict[tuple[int, int], float]()
        came = 0.0
        tensors = graph.input_tensors(i).tolist()
        for e in sorted(tensors, key=lambda e: self.finish[graph.tensor_producer[e]]):
            j, size = int(graph.tensor_producer[e]), int(graph.tensor_bytes[e])
            a, at = self.capacities.device[j], self.finish[j]
            if a != d and size > 0:
                if (e, d) in self.arrived:
                    at = self.arrived[e, d]
                else:
                    at = max(at, wire[a], wire[d]) + self._seconds(size, a, d)
                    wire[a] = wire[d] = sent[e, d] = at
            came = max(came, at)
        return came, wire, sent

    def _place(self, i: int, d: int) -> None:
        came, self.wire, sent = self._transfers(i, d)
        self.arrived.update(sent)
        at = self.slots[d].earliest(came, self.seconds[i][d])
        self.slots[d].take(at, self.seconds[i][d])
        self.start[i], self.finish[i] = at, at + self.seconds[i][d]
        self.capacities.put(i, d)


ENGINE = Engine(
    "Adjusting Placement: stays, unless leaving pays", solve, paper="Xu et al., Celeritas (2022)",
    section="5.2, algorithm 2; 6.1", decides="devices, order",
    sees="one transfer at a time at each device",
    memory="static sum; best effort where all are full", unlike="yes", reduction="celeritas",
)  # fmt: skip
