"""What ranks told of their steps, as numbers, in memory that is bounded however long a job runs.

Each step is kept as long as there is room. Where there is none, each two neighbours become one
group, and from then on steps are added to groups of that size.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from placewire.job.contract.specification import StepDone

# A report has at most so many numbers of each kind.
MOST_GROUPS = 2**18
# Of all ranks, losses and metrics together: 64 MiB.
MOST_NUMBERS = 2**23
# The model chooses its metrics' names; what has a new name then is left out.
MOST_METRICS = 64
# By so many steps a rank may be ahead of what is known of the others.
_MOST_AHEAD = 2**14
_NONE = math.nan


def _numbers() -> array[float]:
    return array("d")


@dataclass
class _OfRank:
    """first: the first step that it told of. seconds: of each group's first step; longest: of each
    group. zeros: how many steps took no time at all. load_seconds: of the batches of each group
    together, and total_load_seconds of all."""

    first: int | None = None
    steps: int = 0
    zeros: int = 0
    total_seconds: float = 0.0
    total_load_seconds: float = 0.0
    seconds: array[float] = field(default_factory=_numbers)
    longest: array[float] = field(default_factory=_numbers)
    load_seconds: array[float] = field(default_factory=_numbers)


@dataclass(frozen=True)
class ToldTimes:
    """What a rank told of the times of its steps. load_seconds: of their batches together, which
    total_seconds does not have."""

    steps: int
    zeros: int
    total_seconds: float
    load_seconds: float


class StepRecord:
    """steps_each: how many steps a group has.

    ranks: how many the job has. buckets: the names of its buckets, where its batches have several
    shapes; a rank may tell others, which do not count.
    """

    def __init__(
        self,
        ranks: int,
        buckets: Sequence[str] = (),
        most_numbers: int = MOST_NUMBERS,
        most_groups: int = MOST_GROUPS,
    ) -> None:
        self.steps_each = 1
        self._ranks = [_OfRank() for _ in range(ranks)]
        self._most_numbers, self._most_groups = most_numbers, most_groups
        self._losses: array[float] | None = None
        self._metrics: dict[str, array[float]] = {}
        # Of the first rank, which knows the bucket as well as any: of each group's first step, by
        # its place in `_names`; how many steps each had; and of the latest steps, which other ranks
        # may not have ended.
        self._names = {name: place for place, name in enumerate(buckets)}
        self._buckets: array[int] = array("i")
        self._count: Counter[str] = Counter()
        self._latest: deque[str | None] = deque(maxlen=_MOST_AHEAD)

    def add(self, event: StepDone) -> None:
        """Each rank's steps come one after another; what does not is left out."""
        rank = self._ranks[event.rank]
        if rank.first is None:
            rank.first = event.step
        elif event.step != rank.first + rank.steps:
            return
        begins = rank.steps % self.steps_each == 0
        rank.steps += 1
        rank.zeros += event.seconds == 0
        rank.total_seconds += event.seconds
        rank.total_load_seconds += event.load_seconds
        if begins:
            rank.seconds.append(event.seconds)
            rank.longest.append(event.seconds)
            rank.load_seconds.append(event.load_seconds)
            self._take_values(event, len(rank.seconds) - 1)
        else:
            rank.longest[-1] = max(rank.longest[-1], event.seconds)
            rank.load_seconds[-1] += event.load_seconds
        if event.rank == 0:
            self._take_bucket(event.bucket, begins)
        while len(rank.seconds) > self._room():
            self._join_neighbours()

    def done(self, first_step: int) -> range:
        """The steps that every rank ended, from first_step on. A rank that ended a step in which
        another failed does not make it a step of the job."""
        if not self._ranks or any(rank.first != first_step for rank in self._ranks):
            return range(first_step, first_step)
        return range(first_step, first_step + min(rank.steps for rank in self._ranks))

    def told_times(self) -> dict[int, ToldTimes]:
        """By rank, of those that told of a step."""
        return {
            number: ToldTimes(rank.steps, rank.zeros, rank.total_seconds, rank.total_load_seconds)
            for number, rank in enumerate(self._ranks)
            if rank.steps
        }

    def seconds(self, done: range, ranks: Collection[int]) -> tuple[float, ...]:
        """Of the first step of each group, as long as it took the slowest of these ranks."""
        return self._slowest(done, [self._ranks[rank].seconds for rank in ranks])

    def longest(self, done: range, ranks: Collection[int]) -> tuple[float, ...]:
        """Of the longest step of each group, on the slowest of these ranks."""
        return self._slowest(done, [self._ranks[rank].longest for rank in ranks])

    def load_seconds(self, done: range, ranks: Collection[int]) -> dict[int, tuple[float, ...]]:
        """By rank, of each group the mean of how long the rank read a step's batch."""
        each, groups = self.steps_each, self._groups(done)

        def means(rank: _OfRank) -> Iterator[float]:
            for group, seconds in enumerate(rank.load_seconds[:groups]):
                yield seconds / min(each, rank.steps - group * each)

        return {number: tuple(means(self._ranks[number])) for number in ranks}

    def losses(self, done: range) -> tuple[float | None, ...]:
        """Of the first step of each group, None where it is not finite; nothing where no rank
        computes one."""
        return () if self._losses is None else self._values(self._losses, done)

    def metrics(self, done: range) -> dict[str, tuple[float | None, ...]]:
        """By name, as losses()."""
        return {name: self._values(values, done) for name, values in self._metrics.items()}

    def buckets(self, done: range) -> tuple[str | None, ...]:
        """Of the first step of each group; None where the rank told none of these buckets."""
        names = [*self._names]
        places = self._buckets[: self._groups(done)]
        return tuple(None if place < 0 else names[place] for place in places)

    def steps_of(self, done: range) -> Counter[str]:
        """How many of these steps each bucket had."""
        if not done:
            return Counter()
        latest, ahead = [*self._latest], self._ranks[0].steps - len(done)
        others = Counter(name for name in latest[max(0, len(latest) - ahead) :] if name is not None)
        return self._count - others

    def _take_values(self, event: StepDone, group: int) -> None:
        if event.loss is not None or event.non_finite_loss is not None:
            if self._losses is None:
                self._losses = _numbers()
            _put(self._losses, group, _NONE if event.loss is None else event.loss)
        for name, value in event.metrics.items():
            if name not in self._metrics:
                if len(self._metrics) >= MOST_METRICS:
                    continue
                self._metrics[name] = _numbers()
            _put(self._metrics[name], group, value)

    def _take_bucket(self, name: str | None, begins: bool) -> None:
        known = name if name in self._names else None
        if begins:
            self._buckets.append(-1 if known is None else self._names[known])
        if known is not None:
            self._count[known] += 1
        self._latest.append(known)

    def _room(self) -> int:
        """How many groups there may be."""
        series = 3 * len(self._ranks) + 2 + len(self._metrics)
        return max(2, min(self._most_groups, self._most_numbers // series))

    def _join_neighbours(self) -> None:
        self.steps_each *= 2
        for rank in self._ranks:
            longest = rank.longest
            pairs = map(max, longest[::2], [*longest[1::2], *longest[-1:]])
            rank.seconds, rank.longest = rank.seconds[::2], array("d", pairs)
            loads = rank.load_seconds
            rank.load_seconds = array("d", map(operator.add, loads[::2], [*loads[1::2], 0.0]))
        if self._losses is not None:
            self._losses = self._losses[::2]
        self._metrics = {name: values[::2] for name, values in self._metrics.items()}
        self._buckets = self._buckets[::2]

    def _groups(self, done: range) -> int:
        return -(-len(done) // self.steps_each)

    def _slowest(self, done: range, series: Sequence[array[float]]) -> tuple[float, ...]:
        groups = self._groups(done)
        return tuple(map(max, zip(*(one[:groups] for one in series), strict=True)))

    def _values(self, values: array[float], done: range) -> tuple[float | None, ...]:
        def padded() -> Iterator[float]:
            yield from values[: self._groups(done)]
            yield from (_NONE for _ in range(self._groups(done) - len(values)))

        return tuple(value if math.isfinite(value) else None for value in padded())


def _put(values: array[float], place: int, value: float) -> None:
    """What was not told before it is not known."""
    values.extend(_NONE for _ in range(place + 1 - len(values)))
    values[place] = value
