"""Validates between two steps: computes the loss and metrics of batches in evaluation mode.

What runs is placed as validation_placement.py says, and sent over the transport of the training,
which meanwhile expects the messages of a validation. The values that training holds are read, and
nothing is written, so that training goes on as if there had been no validation.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from placewire.job.contract.specification import RankSpec, Validated
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessages, rank_messages
from placewire.job.placed.buckets import Buckets
from placewire.job.placed.lower import RankProgram, lower
from placewire.job.placed.validation_memory import refuse_what_does_not_fit
from placewire.job.placed.validation_placement import validation_placement
from placewire.job.transport.transport import Transport
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.metrics import LOSS

# A rank that validates for long says so, lest it be taken for lost.
_TELL_SECONDS = 10.0


class Validation:
    """messages: by bucket, those of one micro-batch of a validation."""

    def __init__(
        self, spec: RankSpec, captured: CapturedStep, training: Buckets, transport: Transport
    ) -> None:
        """Raises JobError where the model has no validation batches, or memory is lacking, and
        CaptureError where a batch is wrong or missing."""
        assert spec.validation is not None
        if captured.validation is None:
            raise JobError(
                f"{spec.model} has no validation batches",
                "give its TrainingStep `validation`, or leave out job.validation",
            )
        self._spec, self._asked = spec, spec.validation
        self._captured, self._batches = captured, captured.validation.batches
        self._transport, self._training = transport, training
        used = training.placements[captured.bucket].devices_used
        reporter: str | None = None
        messages: dict[str, RankMessages] = {}
        self._programs: dict[str, RankProgram] = {}
        for name, one in captured.each_bucket.items():
            assert one.validation is not None, "it is of the model, as that of the first"
            placement = training.placements[name]
            placed = validation_placement(one, placement, reporter)
            reporter = placed.operators[one.validation.loss]
            refuse_what_does_not_fit(one, placed, placement, spec.device)
            messages[name] = rank_messages(
                placed, spec.device, spec.rails, spec.sockets_per_rail, used
            )
            self._programs[name] = lower(
                one.validation, placed, spec.device, messages[name], transport
            )
        self.messages: Mapping[str, RankMessages] = messages
        self._reports = reporter == spec.device
        if self._reads:  # Better now than after hours.
            for number in {0, self._asked.batches - 1}:
                self._batches(number)

    @property
    def _reads(self) -> bool:
        """Whether this rank reads batches: for their tensors, or to know their buckets."""
        return len(self._programs) > 1 or bool(self._programs[self._captured.bucket].inputs)

    def is_due(self, steps_done: int) -> bool:
        return steps_done % self._asked.every == 0 or steps_done == self._spec.steps

    def run(self, steps_done: int, emit: Callable[[Validated], None]) -> None:
        """Emits the mean of the losses of all micro-batches, and of each metric, on one rank."""
        transport, sent = self._transport, Counter(self._transport.sent_bytes)
        began = told = time.perf_counter()
        numbers: dict[str, list[float]] = {}
        for batch in range(self._asked.batches):
            for name, values in self._of_batch(batch).items():
                numbers.setdefault(name, []).extend(values)
            now = time.perf_counter()
            is_last = batch + 1 == self._asked.batches
            if self._reports and (is_last or now - told > _TELL_SECONDS):
                told = now
                emit(self._validated(steps_done, batch + 1, now - began, numbers))
        transport.expect(self._training.messages[self._training.bucket])
        transport.sent_bytes.clear()  # Only what a step sends counts.
        transport.sent_bytes.update(sent)

    def _of_batch(self, batch: int) -> dict[str, list[float]]:
        count, bucket = self._spec.accumulate, self._captured.bucket
        given = self._batches(batch) if self._reads else ()
        if len(self._programs) > 1:
            bucket = self._captured.bucket_of(given)
        program = self._programs[bucket]
        self._transport.expect(self.messages[bucket])
        of_one = len(given) // count
        numbers: dict[str, list[float]] = {}
        for m in range(count):
            program.tell(batch * count + m)
            self._training.begin_step(bucket, f"validation({batch})")
            reported = program.module(*(given[m * of_one + k] for k in program.inputs))
            self._transport.end_step()
            for name, value in reported.items():
                numbers.setdefault(name, []).append(float(value))
        return numbers

    def _validated(
        self, steps_done: int, batches: int, seconds: float, numbers: dict[str, list[float]]
    ) -> Validated:
        means = {name: _mean(values) for name, values in numbers.items()}
        finite = {name: mean for name, mean in means.items() if math.isfinite(mean)}
        loss = finite.pop(LOSS, None)
        return Validated(
            rank=self._spec.rank,
            step=steps_done,
            batches=batches,
            seconds=seconds,
            loss=loss,
            metrics=finite,
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
