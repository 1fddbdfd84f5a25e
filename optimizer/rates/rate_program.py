"""The convex program of bandwidth for one placement with its orders (thesis, P2 with x fixed).

Its variables, scaled to about 1, are the step; the start of each operator that sends or receives;
the arrival of each message; the rate of each (source, destination, rail); and for each rate, or sum
of a pair's rates, by which a message travels, its slowness y >= 1 / rate. This last row is convex
and is replaced by tangents; each round adds some where the answer lies below the curve.

Under `contended` the messages of a device pair queue in their known order. The pair's fastest rail
carries a part of every message, so its queue decides; which rail it is stays fixed here. Under
`thesis` nothing queues, and only transmission is limited (3.7).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.simulation.occupation import occupation
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import Timeline

_ROUNDS = 10
_TANGENT_TOLERANCE = 1e-4
_FIRST_TANGENTS = tuple(2.0**-k for k in range(8))
STEP = 0  # the variable that is minimised

Terms = list[tuple[int, float]]


def best_rates(
    problem: Problem,
    device: IntArray,
    timeline: Timeline,
    rates: FloatArray,
    least: FloatArray,
    until: float = math.inf,
) -> FloatArray | None:
    """float64[S, S, R]: rates not below the least ones and within every limit; None where the
    solver finds none before time.monotonic() is `until`.

    timeline: the placement simulated under `rates`; its orders are kept.
    """
    program = _Program(problem, device, timeline, rates, least)
    values = program.solve(until)
    if values is None:
        return None
    found = least.copy()
    for key, variable in program.rate.items():
        found[key] = max(values[variable] * program.rate_unit, least[key])
    # The solver's tolerance may have let them exceed a limit.
    return problem.limits.within(found)


@dataclass
class _Program:
    """current: the rates under which the timeline was simulated."""

    problem: Problem
    device: IntArray
    timeline: Timeline
    current: FloatArray
    least: FloatArray

    def __post_init__(self) -> None:
        problem, step = self.problem, self.timeline.step_seconds
        self.server = problem.cluster.server_of_device
        self.time_unit = step if np.isfinite(step) and step > 0 else 1.0
        self.rate_unit = float(problem.usable_nic_rates.max())
        self.paths = problem.paths
        self.lasts = occupation(tables_of(problem), self.device)
        # The rows of A x <= b: the terms of A, and b.
        self.rows: list[tuple[Terms, float]] = []
        self.variables = STEP + 1
        self.rate: dict[tuple[int, int, int], int] = {}
        self.slowness: dict[tuple[tuple[int, int, int], ...], int] = {}
        self.start: dict[int, int] = {}
        self._rates()
        self._operators()
        self._orderings()
        self._messages()

    def _new(self) -> int:
        self.variables += 1
        return self.variables - 1

    def _after(self, later: int, earlier: Terms, seconds: float) -> None:
        self.rows.append(([*earlier, (later, -1.0)], -seconds / self.time_unit))

    def _rates(self) -> None:
        """Adds one variable per used pair and rail, and a row per limit with what it has left for
        them. Where messages are cut equally, all rails that serve a pair share one variable."""
        widest, limits = self.problem.worthwhile_rates, self.problem.limits
        pairs = {
            (int(self.server[m.source]), int(self.server[m.destination]))
            for m in self.timeline.messages
            if m.rails
        }
        members: dict[tuple[int, int], Terms] = defaultdict(list)
        for s, t in sorted(pairs):
            served = np.flatnonzero(widest[s, t]).tolist()
            common = self._new() if self.problem.cuts_equally else None
            for r in served:
                self.rate[s, t, r] = self._new() if common is None else common
        for k in range(limits.groups.shape[3]):
            for (s, t, r), variable in self.rate.items():
                members[r, int(limits.groups[r, s, t, k])].append((variable, 1.0))
        fixed = self.least.copy()
        for key in self.rate:
            fixed[key] = 0.0
        left = limits.capacity - limits.load(fixed)
        for (r, group), terms in members.items():
            # Pairs within a pod are limited by no uplink.
            if math.isfinite(left[r, group]):
                self.rows.append((terms, float(left[r, group]) / self.rate_unit))

    def _operators(self) -> None:
        """Adds the starts of operators that send or receive; what a device runs between two of them
        takes constant time."""
        graph = self.problem.graph
        source, target, _ = graph.edges
        crossing = self.device[source] != self.device[target]
        talks = set(source[crossing].tolist()) | set(target[crossing].tolist())
        for order in self.timeline.order:
            earlier: Terms = []
            gap = 0.0
            for i in order:
                if i in talks:
                    self.start[i] = self._new()
                    self._after(self.start[i], earlier, gap)
                    earlier, gap = [(self.start[i], 1.0)], 0.0
                gap += self._seconds(i)
            self._after(STEP, earlier, gap)

    def _seconds(self, operator: int) -> float:
        return float(self.lasts[operator])

    def _orderings(self) -> None:
        """Adds a row for each tensor of 0 bytes between devices: its consumer waits, but nothing is
        sent."""
        graph = self.problem.graph
        source, target, tensor = graph.edges
        silent = (self.device[source] != self.device[target]) & (graph.tensor_bytes[tensor] == 0)
        for i, j in zip(source[silent].tolist(), target[silent].tolist(), strict=True):
            self._after(self.start[j], [(self.start[i], 1.0)], self._seconds(i))

    def _messages(self) -> None:
        graph = self.problem.graph
        place = {i: k for order in self.timeline.order for k, i in enumerate(order)}
        in_use: dict[tuple[int, int], int] = defaultdict(int)
        for a, b in {(m.source, m.destination) for m in self.timeline.messages if m.rails}:
            in_use[int(self.server[a]), int(self.server[b])] += 1
        queue: dict[tuple[int, int], int] = {}
        for message in sorted(
            self.timeline.messages,
            key=lambda m: (place[int(graph.tensor_producer[m.tensor])], m.tensor),
        ):
            producer = int(graph.tensor_producer[message.tensor])
            a, b = message.source, message.destination
            bits = float(graph.tensor_bytes[message.tensor]) * 8.0
            setup, took, slow = self._duration(a, b, bits, in_use)
            arrival = self._new()
            made = self._seconds(producer) + setup + took
            self._after(arrival, [(self.start[producer], 1.0), *slow], made)
            if self.problem.model == "contended":
                if (a, b) in queue:
                    self._after(arrival, [(queue[a, b], 1.0), *slow], took)
                queue[a, b] = arrival
            for c in graph.tensor_consumers(message.tensor).tolist():
                if self.device[c] == b:
                    self._after(self.start[c], [(arrival, 1.0)], 0.0)

    def _duration(
        self, a: int, b: int, bits: float, in_use: Mapping[tuple[int, int], int]
    ) -> tuple[float, float, Terms]:
        """Returns (seconds of a message's set-up, other fixed seconds of it, its terms in slowness
        variables)."""
        if self.paths.rate[a, b] > 0:
            return float(self.paths.setup[a, b]), float(bits / self.paths.rate[a, b]), []
        s, t = int(self.server[a]), int(self.server[b])
        rails = tuple(key for key in self.rate if key[:2] == (s, t))
        scale = bits / self.rate_unit / self.time_unit
        if self.problem.model == "contended":
            scale *= in_use[s, t]
            if bits < CUT_THRESHOLD_BYTES * 8.0:
                rails = ((s, t, int(self.current[s, t].argmax())),)
        if rails not in self.slowness:
            self.slowness[rails] = self._new()
            for fraction in _FIRST_TANGENTS:
                self._tangent(rails, fraction * len(rails))
        return self.problem.cluster.setup_latency_seconds, 0.0, [(self.slowness[rails], scale)]

    def _tangent(self, rails: tuple[tuple[int, int, int], ...], at: float) -> None:
        """Adds the tangent of 1 / x at x = at, which is 2 / at - x / at^2, as a lower bound."""
        terms: Terms = [(self.slowness[rails], -1.0)]
        terms += [(self.rate[key], -1.0 / at**2) for key in rails]
        self.rows.append((terms, -2.0 / at))

    def solve(self, until: float) -> FloatArray | None:
        values: FloatArray | None = None
        for _ in range(_ROUNDS):
            found = self._linear_program(until)
            if found is None:
                return values
            values = found
            added = False
            for rails, variable in self.slowness.items():
                rate = sum(float(values[self.rate[key]]) for key in rails)
                if values[variable] * rate < 1.0 - _TANGENT_TOLERANCE:
                    self._tangent(rails, rate)
                    added = True
            if not added:
                break
        return values

    def _linear_program(self, until: float) -> FloatArray | None:
        left = until - time.monotonic()
        if left <= 0.0:
            return None
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        row = [k for k, (terms, _) in enumerate(self.rows) for _ in terms]
        column, value = zip(*(term for terms, _ in self.rows for term in terms), strict=True)
        shape = (len(self.rows), self.variables)
        matrix = coo_array((value, (row, column)), shape=shape).tocsr()
        objective = np.zeros(self.variables)
        objective[STEP] = 1.0
        low, high = np.zeros(self.variables), np.full(self.variables, np.inf)
        # An upper bound for each rate, because the thesis' model limits no sum at a receiver.
        widest = self.problem.worthwhile_rates
        for key, variable in self.rate.items():
            low[variable] = self.least[key] / self.rate_unit
            high[variable] = min(high[variable], widest[key] / self.rate_unit)
        result: Any = linprog(
            objective, A_ub=matrix, b_ub=np.array([limit for _, limit in self.rows]),
            bounds=np.stack([low, high], axis=1), method="highs",
            options={"time_limit": left} if math.isfinite(left) else {},
        )  # fmt: skip
        return np.asarray(result.x, dtype=np.float64) if result.status == 0 else None
