"""Decides which small tensors travel together, so that a step has few messages.

However small a message is, it occupies both of its devices for `message_seconds`. So several ways
to join tensors are tried: by when they are made and needed, from ways that delay readers to those
that delay nobody, and by ranges of layers.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.layered_bundles import layered_bundles, with_shared_messages
from placewire.optimizer.engines.layout import USUAL_CUTS, Cuts
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.bundles import Bundle, PlacedStep, joined, with_bundles
from placewire.optimizer.simulation.simulate import recorded_priority, simulate
from placewire.optimizer.simulation.timeline import Timeline, TimelineMessage

# A bundle takes at most this part of the step, or this time, to be sent alone.
_PART_OF_STEP, _LEAST_SECONDS = 1 / 200, 1e-3
# Bundles of one pair that may still grow.
_MOST_OPEN = 8
# By what part of the step a bundle may be late at its first reader, and by what part of the first
# limit it may be large.
_ATTEMPTS = (
    (0.05, 4.0), (0.02, 2.0), (0.005, 2.0), (0.002, 1.0), (0.0, 1.0), (0.0, 0.25), (-0.03, 0.25),
)  # fmt: skip
# Into how many ranges the layers are cut whose weights, and gradients, travel together, and how
# often one of their ends is moved to see what becomes of the step.
_RANGES, _MOST_MOVES = (1, 2, 4, 6, 8, 10, 12), 200
# On graphs of so many operators only these are tried, because each takes a simulation.
_FEW_FROM, _FEW_RANGES = 20_000, (4, 8)
_FEW_ATTEMPTS = (0.02, 2.0), (0.005, 2.0), (0.0, 1.0)
# A search that knows no bundles counts this part of what a message costs: about so many messages
# are left where tensors travel together. With many weights for each device they are fewer.
_MOST_LEFT, _LEAST_LEFT, _WEIGHTS_OF_A_DEVICE = 0.25, 0.1, 8


@dataclass(frozen=True)
class Bundled:
    """solution: of the graph as it was given. problem, step, timeline: with the bundles as
    operators."""

    solution: Solution
    problem: Problem
    step: PlacedStep
    timeline: Timeline
    bundles: tuple[Bundle, ...] = ()


def seen_by_search(problem: Problem) -> Problem:
    """The problem as a search sees it whose placement gets bundles: it counts bundles along layers,
    or else a part of what messages take."""
    return with_shared_messages(problem) or with_fewer_messages(problem)


def with_fewer_messages(problem: Problem) -> Problem:
    """The problem where messages take the part of their time that is left on average with bundles,
    without any bundle."""
    cluster = problem.cluster
    if problem.message_seconds == 0.0:
        return problem
    weights = sum(kind == "parameter" for kind in problem.graph.types)
    left = _WEIGHTS_OF_A_DEVICE * len(cluster.devices) / max(weights, 1)
    some = cluster.message_seconds * min(max(left, _LEAST_LEFT), _MOST_LEFT)
    return replace(problem, cluster=cluster.model_copy(update={"message_seconds": some}))


@dataclass
class _Open:
    """A bundle that may grow. there: when its last tensor arrives without bundles. needed: when the
    first operator that reads any of it starts."""

    tensors: list[int]
    bytes: int
    there: float
    needed: float


def unbundled(problem: Problem, solution: Solution) -> Bundled:
    timeline = simulate(problem, solution.device, solution.priority, None, solution.rates)
    step = PlacedStep(problem.graph, solution.device, timeline.order)
    return Bundled(solution, problem, step, timeline)


def best_bundled(
    problem: Problem, solution: Solution, others: Iterable[Solution], until: float
) -> Bundled:
    """The solution, or one of the others, with bundles, whichever is then shortest and within the
    memories. The others are tried one after the other, and then other ends of layers' ranges, until
    time.monotonic() is `until`."""
    began = time.monotonic()
    first = _Bundling(problem, solution)
    best = first.best(until)
    took = time.monotonic() - began
    if problem.message_seconds == 0.0:
        return best
    of_best = first
    for other in others:
        if time.monotonic() + took > until:
            break
        bundling = _Bundling(problem, other)
        tried = bundling.best(until)
        if bundling.key < of_best.key:
            best, of_best = tried, bundling
    return of_best.with_other_ends(until)


def bundled(problem: Problem, solution: Solution) -> Bundled:
    """The solution with the bundles that are best; its order may change."""
    return _Bundling(problem, solution).best()


class _Bundling:
    """The ways to join the tensors of one solution."""

    def __init__(self, problem: Problem, solution: Solution) -> None:
        self.problem, self.solution = problem, solution
        self.found = self.plain = unbundled(problem, solution)
        # The key of the best step found: one within the memories comes before a faster one.
        self.key = _key(problem, self.plain.timeline)
        self.layered = layered_bundles(problem)
        # The best of the ways that follow layers.
        self.cuts, self.of_cuts = Cuts.equal(1), math.inf
        self.longest_try = 0.0

    def best(self, until: float = math.inf) -> Bundled:
        """Begins no further way after time.monotonic() is `until`."""
        problem, timeline = self.problem, self.plain.timeline
        never = not math.isfinite(timeline.step_seconds)
        if problem.message_seconds == 0.0 or not timeline.messages or never:
            return self.plain
        many = problem.graph.operator_count >= _FEW_FROM
        self._try_cuts(self.solution.cuts or USUAL_CUTS)
        for k, how in enumerate(_FEW_ATTEMPTS if many else _ATTEMPTS):
            if k == 0 or time.monotonic() + self.longest_try < until:
                self._try(_chosen(problem, self.plain.step, timeline, timeline.messages, *how))
        for count in _FEW_RANGES if many else _RANGES:
            if time.monotonic() + self.longest_try < until:
                self._try_cuts(Cuts.equal(count))
        self._add_to(self.found, _FEW_ATTEMPTS if many else _ATTEMPTS, until)
        return self.found

    def _add_to(
        self, begun: Bundled, attempts: Sequence[tuple[float, float]], until: float
    ) -> None:
        """Joins what still travels alone."""
        tensors = self.problem.graph.tensor_count
        alone = [one for one in begun.timeline.messages if one.tensor < tensors]
        for how in attempts if begun.bundles else ():
            if time.monotonic() + self.longest_try < until:
                more = _chosen(begun.problem, begun.step, begun.timeline, alone, *how)
                self._try([*begun.bundles, *more])

    def with_other_ends(self, until: float) -> Bundled:
        """The best after best(), where ranges of layers may end elsewhere."""
        chance = np.random.default_rng(0)
        for _ in range(_MOST_MOVES if math.isfinite(self.of_cuts) else 0):
            if time.monotonic() + self.longest_try > until:
                break
            self._try_cuts(self.cuts.moved(chance))
        if not math.isfinite(self.of_cuts):
            return self.found
        found, layout = self.found, self.found.solution.layout
        layout = None if layout is None else replace(layout, cuts=self.cuts)
        return replace(found, solution=replace(found.solution, cuts=self.cuts, layout=layout))

    def _try_cuts(self, cuts: Cuts) -> None:
        if self.layered is None:
            return
        step_seconds = self._try(self.layered.of(self.plain.step, cuts))
        if step_seconds < self.of_cuts:
            self.cuts, self.of_cuts = cuts, step_seconds

    def _try(self, attempt: Iterable[Bundle]) -> float:
        """Returns the step, inf where it is impossible, and keeps what is best."""
        began = time.monotonic()
        step_seconds = self._tried(attempt)
        self.longest_try = max(self.longest_try, time.monotonic() - began)
        return step_seconds

    def _tried(self, attempt: Iterable[Bundle]) -> float:
        problem, given = self.problem, self.plain.step
        bundles = tuple(sorted(joined(attempt), key=lambda one: one.turn))
        try:
            made = with_bundles(given, bundles)
        except GraphError:
            return math.inf  # two bundles would wait for each other
        again = replace(problem, graph=made.graph)
        # A bundle leaves as soon as the last of its tensors is made.
        first = np.full(len(bundles), np.inf)
        priority = np.concatenate([_priority(problem, self.solution), first])
        found = simulate(again, made.device, priority, None, self.solution.rates)
        step = PlacedStep(made.graph, made.device, found.order)
        key = _key(again, found)
        if key < self.key:
            self.key = key
            self.found = Bundled(self.solution, again, step, found, _as_made(bundles, step))
        return found.step_seconds if key[0] <= self.key[0] else math.inf


def _as_made(bundles: Sequence[Bundle], step: PlacedStep) -> tuple[Bundle, ...]:
    """The bundles with their tensors in the order in which this step makes them."""
    turn, made = step.turns, step.graph.tensor_producer
    return tuple(
        replace(one, tensors=tuple(sorted(one.tensors, key=lambda e: int(turn[made[e]]))))
        for one in bundles
    )


def _priority(problem: Problem, solution: Solution) -> FloatArray:
    return recorded_priority(problem) if solution.priority is None else solution.priority


def _key(problem: Problem, timeline: Timeline) -> tuple[bool, float]:
    """(whether a memory is exceeded, the step)"""
    exceeds = bool((timeline.peak_memory_bytes > problem.cluster.memory_bytes).any())
    return exceeds, timeline.step_seconds


def _chosen(
    problem: Problem, step: PlacedStep, timeline: Timeline, among: Iterable[TimelineMessage],
    late: float, large: float,
) -> Iterator[Bundle]:  # fmt: skip
    tables = tables_of(problem)
    limit = max(_PART_OF_STEP * timeline.step_seconds, _LEAST_SECONDS) * large
    slack = late * timeline.step_seconds
    needed = _first_reads(problem.graph, step.device, timeline)
    turn = step.turns
    made = problem.graph.tensor_producer
    pairs: dict[tuple[int, int], list[TimelineMessage]] = defaultdict(list)
    for message in among:
        pairs[message.source, message.destination].append(message)
    for (a, b), messages in pairs.items():
        rate, setup = float(tables.alone_rate[a, b]), float(tables.alone_setup[a, b])
        still_open: list[_Open] = []
        for one in sorted(messages, key=lambda m: (turn[made[m.tensor]], m.tensor)):
            size = int(problem.graph.tensor_bytes[one.tensor])
            if size * 8 > limit * rate:
                continue
            wanted = needed[one.tensor, b] + slack
            for at in reversed(still_open):
                both = at.bytes + size
                there = max(
                    at.there, one.finish_seconds, one.queued_seconds + setup + both * 8 / rate
                )
                # What one operator makes leaves at once, and a file says which was made last.
                apart = made[at.tensors[-1]] != made[one.tensor]
                if apart and both * 8 <= limit * rate and there <= min(at.needed, wanted):
                    at.tensors.append(one.tensor)
                    at.bytes, at.there, at.needed = both, there, min(at.needed, wanted)
                    break
            else:
                still_open.append(_Open([one.tensor], size, one.finish_seconds, wanted))
                if len(still_open) > _MOST_OPEN:
                    yield from _several(a, b, still_open.pop(0))
        for at in still_open:
            yield from _several(a, b, at)


def _several(source: int, destination: int, found: _Open) -> Iterator[Bundle]:
    if len(found.tensors) > 1:
        yield Bundle(source, (destination,), tuple(found.tensors))


def _first_reads(
    graph: OperatorGraph, device: IntArray, timeline: Timeline
) -> dict[tuple[int, int], float]:
    """When the first operator on a device that reads a tensor of another one starts, by tensor and
    device."""
    source, target, tensor = graph.edges
    crossing = device[source] != device[target]
    found: dict[tuple[int, int], float] = {}
    for e, d, at in zip(
        tensor[crossing].tolist(), device[target[crossing]].tolist(),
        timeline.start[target[crossing]].tolist(), strict=True,
    ):  # fmt: skip
        found[e, d] = min(at, found.get((e, d), at))
    return found
