"""Follows the run that goes on: what its ranks told, and what its NICs sent."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.metrics.run_facts import NO_BUCKET, Pair, RunFacts, StepFacts
from placewire.controller.records.joined_steps import Steps
from placewire.job.contract.specification import (
    Failed,
    Finished,
    RankEvent,
    Resumed,
    Started,
    StepDone,
    Validated,
)

# A rate that a person watches is that of so many steps.
LATEST_STEPS = 20

SentBytes = Callable[[], Mapping[tuple[str, str], int]]


@dataclass
class Rank:
    """is_up: whether it runs; None where it has not begun, or came to its end as it was to.
    step_seconds: of all its steps together. memory_bytes: the most that they took. metrics: what
    it reported last beside the loss; each rank reports what it computes."""

    is_up: bool | None = None
    step_seconds: float = 0.0
    memory_bytes: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class RunState:
    """facts: None before the job begins; then all below is of that job, also after its end, until
    its command ends. links: what was measured before. sent_bytes(): what each NIC, by (server,
    NIC), has sent since the job began. steps: how many every rank has done, those before a resumed
    checkpoint included; steps_of: how many of them in this run, by bucket. step_seconds: of this
    run's steps together, each as long as on its slowest rank. latest: of the last ones the seconds
    and the prediction, without the first, which warms up; latest_loads: of the same, how long the
    slowest rank read the batch before. loss, validation_loss: the last that was told; None where
    that was not finite. non_finite_steps: of this run, those whose loss was not finite."""

    facts: RunFacts | None = None
    links: Sequence[LinkMeasurement] = ()
    sent_bytes: SentBytes = dict
    ranks: list[Rank] = field(default_factory=list)
    steps: int = 0
    steps_of: Counter[str] = field(default_factory=Counter)
    step_seconds: float = 0.0
    last_step_unix: float | None = None
    latest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=LATEST_STEPS))
    latest_loads: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST_STEPS))
    loss: float | None = None
    validation_loss: float | None = None
    non_finite_steps: int = 0
    _joined: Steps = field(default_factory=lambda: Steps(ranks=1))

    def begin(self, facts: RunFacts, sent_bytes: SentBytes) -> None:
        self.facts, self.sent_bytes = facts, sent_bytes
        self.ranks = [Rank() for _ in facts.devices]
        self._joined = Steps(len(self.ranks))

    def event(self, event: RankEvent, now_unix: float | None = None) -> None:
        """now_unix: None: now."""
        rank = self.ranks[event.rank]
        if isinstance(event, Started):
            rank.is_up = True
        elif isinstance(event, Finished):
            rank.is_up = None
            rank.memory_bytes = event.step_memory_bytes or rank.memory_bytes
        elif isinstance(event, Failed):
            rank.is_up = False
        elif isinstance(event, Resumed):
            self.steps = event.step
        elif isinstance(event, Validated):
            self.validation_loss = event.loss
        elif isinstance(event, StepDone):
            self._step(rank, event, time.time() if now_unix is None else now_unix)

    def rank_gone(self, rank: int) -> None:
        """It ended by itself, and had not come to its end."""
        self.ranks[rank].is_up = False

    def end_job(self) -> None:
        """Ranks that still ran were ended; which were gone before is known until the run ends."""
        for rank in self.ranks:
            if rank.is_up:
                rank.is_up = None

    @property
    def planned_bytes(self) -> Mapping[Pair, float]:
        """Payload bytes that the steps of this run were to send."""
        planned: dict[Pair, float] = defaultdict(float)
        for bucket, count in self.steps_of.items():
            for pair, size in self._steps_as_decided[bucket].bytes_by_pair.items():
                planned[pair] += size * count
        return planned

    @property
    def metrics(self) -> Mapping[str, float]:
        """The ranks' latest metrics together, by name."""
        return {name: value for rank in self.ranks for name, value in rank.metrics.items()}

    @property
    def prediction_ratio(self) -> float | None:
        """How many times longer than predicted the latest steps took."""
        predicted = sum(expected for _, expected in self.latest)
        return sum(seconds for seconds, _ in self.latest) / predicted if predicted else None

    @property
    def remaining_seconds(self) -> float | None:
        """Of the other steps and their batches, where they take as long as the latest."""
        if self.facts is None or self.facts.steps is None or not self.latest:
            return None
        latest = sum(seconds for seconds, _ in self.latest) + sum(self.latest_loads)
        return max(0, self.facts.steps - self.steps) * latest / len(self.latest)

    def _step(self, rank: Rank, event: StepDone, now_unix: float) -> None:
        rank.step_seconds += event.seconds
        rank.memory_bytes = event.memory_bytes or rank.memory_bytes
        if event.loss is not None or event.non_finite_loss is not None:
            self.loss = event.loss
        if event.metrics:
            rank.metrics = event.metrics
        if (step := self._joined.ended(event)) is None:
            return
        decided = self._steps_as_decided
        # The model chooses its buckets' names, and may tell one that the decision lacks.
        bucket = step.bucket or NO_BUCKET
        bucket = bucket if bucket in decided else next(iter(decided))
        if self.steps_of:
            self.latest.append((step.seconds, decided[bucket].predicted_seconds))
            self.latest_loads.append(step.load_seconds)
        self.steps_of[bucket] += 1
        if step.loss is not None and not math.isfinite(step.loss):
            self.non_finite_steps += 1
        self.steps = step.number + 1
        self.step_seconds += step.seconds
        self.last_step_unix = now_unix

    @property
    def _steps_as_decided(self) -> Mapping[str, StepFacts]:
        """By bucket."""
        assert self.facts is not None, "there are steps in a job alone"
        return self.facts.by_bucket
