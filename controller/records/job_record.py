"""What a job's ranks told, as far as its report needs it, in memory that is bounded however long
the job runs: of steps numbers, of what is told again and again the last."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.controller.records.step_record import StepRecord
from placewire.job.contract.specification import (
    Carried,
    Finished,
    RankEvent,
    Resumed,
    Saved,
    StepDone,
    Validated,
)

# Of more, every other one is left out, then every other one of these, and so on. The last one is
# always there.
MOST_VALIDATIONS = 4096


class JobRecord:
    """has_begun: whether a rank told anything. finished, carried, processor_waits: by rank, what it
    told last."""

    def __init__(self) -> None:
        self.has_begun = False
        self.steps = StepRecord(ranks=0)
        self.resumed: Resumed | None = None
        self.saved: Saved | None = None
        self.finished: dict[int, Finished] = {}
        self.carried: dict[int, Carried] = {}
        self.processor_waits: dict[int, float] = {}
        # By step. `_passing` is the step of the last one, where it goes as soon as another comes.
        self._validations: dict[int, Validated] = {}
        self._told = 0
        self._each = 1
        self._passing: int | None = None

    def begin(self, ranks: int, buckets: Sequence[str] = ()) -> None:
        """To be called before ranks tell of steps; as StepRecord has them."""
        self.steps = StepRecord(ranks, buckets)

    def add(self, event: RankEvent) -> None:
        self.has_begun = True
        if isinstance(event, StepDone):
            self.steps.add(event)
        elif isinstance(event, Resumed):
            self.resumed = self.resumed or event
        elif isinstance(event, Saved):
            self.saved = event
        elif isinstance(event, Carried):
            self.carried[event.rank] = event
        elif isinstance(event, Finished):
            self.finished[event.rank] = event
        elif isinstance(event, Validated):
            self._validated(event)
        if isinstance(event, StepDone | Finished) and event.processor_wait is not None:
            self.processor_waits[event.rank] = event.processor_wait

    @property
    def validations(self) -> tuple[Validated, ...]:
        """The last that was told of each; of one that was interrupted, what it had computed."""
        return tuple(self._validations.values())

    def _validated(self, event: Validated) -> None:
        known = self._validations
        if event.step not in known:
            if self._passing is not None:
                del known[self._passing]
            self._passing = event.step if self._told % self._each else None
            self._told += 1
        known[event.step] = event
        if len(known) > MOST_VALIDATIONS:
            self._each *= 2
            for step in [*known][1::2]:
                if step != event.step:
                    del known[step]
            self._passing = event.step if (self._told - 1) % self._each else None
