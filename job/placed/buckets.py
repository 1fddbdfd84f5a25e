"""A rank's programs, one for each bucket: the shapes of a step's batch decide which of them runs.

All of them hold the same parameters, buffers and optimizer state. Every rank reads the batch of
each step, because no message says which bucket it is of. Before a step ranks tell each other that
bucket, and before the first one also what they read (first_batch.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessages, rank_messages
from placewire.job.placed.first_batch import SAME_EVERYWHERE, require_same, told_of
from placewire.job.placed.lower import RankProgram, lower
from placewire.job.transport.transport import Transport
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.memory import held_bytes
from placewire.optimizer.capture.protocol import Tensors
from placewire.optimizer.placement import Placement, load_placement


class Buckets:
    """placements, messages: by bucket, the first of which decides where parameters live. A model
    without buckets has one, called ""."""

    def __init__(
        self,
        spec: RankSpec,
        placement: Placement,
        captured: CapturedStep,
        messages: RankMessages,
        transport: Transport,
        watched: Transport,
    ) -> None:
        """placement, messages: of the first bucket. watched: the transport, as programs use it.
        Raises JobError where a bucket has no placement, or one that does not go with the first."""
        self._model, self._captured, self._transport = spec.model, captured, transport
        self._tensors = len(captured.shapes) // spec.accumulate
        # What is to be told of the first batch; None before it is read.
        self._of_first: tuple[float, ...] | None = None if spec.world_size > 1 else ()
        self.placements = {captured.bucket: placement, **_placements(spec, captured)}
        self.messages = {captured.bucket: messages}
        self.first = lower(captured, placement, spec.device, messages, watched)
        self._programs = {captured.bucket: self.first}
        for name, one in captured.buckets.items():
            placed = self.placements[name]
            _require_same_owners(captured, placement, placed, name)
            own = rank_messages(
                placed, spec.device, spec.rails, spec.sockets_per_rail, placement.devices_used
            )
            self.messages[name] = own
            self._programs[name] = lower(
                one, placed, spec.device, own, watched, updates=self.first.updates
            )
        self.bucket = captured.bucket

    @property
    def program(self) -> RankProgram:
        """Of the bucket of the step that was loaded last."""
        return self._programs[self.bucket]

    @property
    def held_bytes(self) -> int:
        """What stays between steps."""
        return held_bytes(torch.nn.ModuleList(one.module for one in self._programs.values()))

    def load(self, step: int) -> Tensors:
        """Prepares all for the step, and returns its program's inputs. Raises CaptureError where
        the batch is of no bucket."""
        several = len(self._programs) > 1
        batch: Tensors = ()
        if several or self.first.inputs:
            batch = self._captured.batches(step)
        if several:
            self.bucket = self._captured.bucket_of(batch)
            self._transport.expect(self.messages[self.bucket])
        if self._of_first is None:
            most = max(len(one.shapes) for one in self._captured.each_bucket.values())
            self._of_first = told_of(batch, most)
        self.program.tell(step)
        return tuple(batch[position] for position in self.program.inputs)

    def begin_step(self, bucket: str, batch: str) -> None:
        """Begins a step of the transport. batch: as the user calls it, like `batches(3)`; it is of
        that bucket here. Raises JobError where it is of another one on another rank, and where
        ranks read others as the job's first batch."""
        names, of_first = [*self.placements], self._of_first or ()
        of_bucket = (float(names.index(bucket)),) if len(names) > 1 else ()
        self._of_first = ()
        everybody = self._transport.begin_step((*of_bucket, *of_first))
        used, what = self.placements[names[0]].devices_used, f"{batch} of {self._model}"
        if of_bucket:
            _require_one_bucket([names[int(one[0])] for one in everybody], used, what)
        if of_first:
            told = [one[len(of_bucket) :] for one in everybody]
            require_same(told, used, self._tensors, what)


def _require_one_bucket(chosen: Sequence[str], devices: Sequence[str], what: str) -> None:
    """chosen: by rank. Raises JobError."""
    found: dict[str, list[str]] = {}
    for device, name in zip(devices, chosen, strict=True):
        found.setdefault(name, []).append(device)
    if len(found) > 1:
        each = "; ".join(f"{name!r} on {', '.join(some)}" for name, some in found.items())
        raise JobError(f"{what} is not of the same bucket on all ranks: {each}", SAME_EVERYWHERE)


def _placements(spec: RankSpec, captured: CapturedStep) -> Mapping[str, Placement]:
    if spec.bucket_files.keys() != captured.buckets.keys():
        told, known = (", ".join(map(repr, some)) for some in (spec.bucket_files, captured.buckets))
        raise JobError(
            f"beside {captured.bucket!r} {spec.model} has buckets {known or 'none'}, and there are "
            f"placements for {told or 'none'}",
            "make the model's sources the same on every server",
        )
    if spec.bucket_files and spec.trace is not None:
        raise JobError(
            f"{spec.model} has buckets, and the steps of a trace are of one shape",
            "leave out job.trace",
        )
    return {name: load_placement(Path(file)) for name, file in spec.bucket_files.items()}


def _require_same_owners(
    captured: CapturedStep, first: Placement, other: Placement, name: str
) -> None:
    moved = [i for i in captured.values if first.operators.get(i) != other.operators.get(i)]
    if moved:
        raise JobError(
            f"the placement of bucket {name!r} has {moved[0]!r} on "
            f"{other.operators.get(moved[0])}, and that of {captured.bucket!r} on "
            f"{first.operators.get(moved[0])}",
            "place it with `optimizer beside`, which takes the first bucket's placement",
        )
