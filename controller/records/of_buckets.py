"""What was predicted and measured of each bucket of a job whose batches have several shapes. Pure.

A figure for the job is the mean over its buckets, weighted by how many steps of the run each had;
where no step was run, by how many were expected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from placewire.controller.records.of_steps import typical_step
from placewire.controller.records.step_record import StepRecord
from placewire.frozen import Frozen

if TYPE_CHECKING:
    from placewire.optimizer.placement import Placement


class BucketRow(Frozen):
    """share: the part of the job's steps that was expected to have a batch of this bucket. steps:
    how many of the run's had. measured_step_seconds: the median of these without the first, which
    warms up the bucket's own program, unless it is alone; None where there is none whose time is to
    be believed."""

    name: str
    share: float
    steps: int
    predicted_step_seconds: float
    bound_seconds: float
    single_device_seconds: float | None
    measured_step_seconds: float | None


def bucket_rows(
    placements: Mapping[str, Placement],
    shares: Mapping[str, float],
    told: StepRecord,
    done: range,
    times: Sequence[float],
) -> tuple[BucketRow, ...]:
    """placements: by bucket; none of a job without buckets. done: the steps of the run. times: of
    the first step of each group of the record; empty where no time is to be believed."""
    count = told.steps_of(done)
    taken: dict[str | None, list[float]] = defaultdict(list)
    for bucket, seconds in zip(told.buckets(done), times, strict=False):
        taken[bucket].append(seconds)
    return tuple(
        BucketRow(
            name=name,
            share=shares[name],
            steps=count[name],
            predicted_step_seconds=one.step_seconds,
            bound_seconds=one.bound_seconds,
            single_device_seconds=one.best_single_device_seconds,
            measured_step_seconds=typical_step(taken[name]),
        )
        for name, one in placements.items()
    )


def weights(rows: Sequence[BucketRow]) -> Mapping[str, float]:
    """The part of the steps that each bucket had, or is expected to have where no step was run."""
    total = sum(row.steps for row in rows)
    return {row.name: row.steps / total if total else row.share for row in rows}


def weighted(rows: Sequence[BucketRow], field: str) -> float | None:
    """The mean of a field over the buckets; None where it is not known of one that counts."""
    found = 0.0
    for name, weight in weights(rows).items():
        if not weight:
            continue
        value = next(getattr(row, field) for row in rows if row.name == name)
        if value is None:
            return None
        found += weight * value
    return found
