"""Captures steps once, in the process that ranks are forked from, for all of these ranks."""

from __future__ import annotations

from collections.abc import Collection
from unittest.mock import patch

import torch

from placewire.job.contract.specification import RankSpec
from placewire.job.placed import runtime
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.deferred import Recording, recorded
from placewire.optimizer.capture.partial_values import CapturedPart, capture_part
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import built_step, captured_with_buckets

_PART = "placewire.optimizer.capture.partial_values"
# By what was asked for: the step, how it was built, and its capture.
_shared: dict[str, tuple[TrainingStep, Recording, CapturedStep]] = {}


def share_capture(specification: str) -> None:
    """Captures a rank's step for it and for all later ranks that ask for the same.

    specification: a RankSpec as JSON. Each rank still makes the values of its part itself.
    """
    options = runtime.capture_options(RankSpec.model_validate_json(specification), "cpu")
    if repr(options) in _shared:
        return
    # Threads of torch would not survive the fork; ranks set their own number.
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=()):
        step, recording = recorded(lambda: built_step(options))
        captured = captured_with_buckets(step, options)
    _shared[repr(options)] = step, recording, captured
    patch.object(runtime, "capture_part", _part_of_shared).start()


def _part_of_shared(
    options: CaptureOptions, *, wanted: Collection[str], others: bool
) -> CapturedPart:
    if (shared := _shared.get(repr(options))) is None:
        return capture_part(options, wanted=wanted, others=others)
    step, recording, captured = shared
    with (
        patch(f"{_PART}.recorded", lambda build: (step, recording)),
        patch(f"{_PART}.captured_with_buckets", lambda *asked: captured),
    ):
        return capture_part(options, wanted=wanted, others=others)
