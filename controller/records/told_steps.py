"""Judges the times of steps that ranks told, against the clock of the controller. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.controller.records.step_record import ToldTimes

# A rank's clock may run faster than ours, and ours is read a moment late.
_FASTER = 1.01
_LATE_SECONDS = 1.0


def believed(
    told: Mapping[int, ToldTimes], devices: Sequence[str], job_seconds: float | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Returns the ranks whose times are possible, and a sentence for each other rank that told of
    steps. devices: by rank. job_seconds: how long the job took here; None: not known."""
    good: list[int] = []
    notes: list[str] = []
    for rank, times in sorted(told.items()):
        if (why := _impossible(times, job_seconds)) is None:
            good.append(rank)
        else:
            notes.append(
                f"the step times that rank {rank} ({devices[rank]}) told are not used: {why}"
            )
    return tuple(good), tuple(notes)


def _impossible(told: ToldTimes, job_seconds: float | None) -> str | None:
    all_seconds = told.total_seconds + told.load_seconds
    if told.zeros:
        return f"{told.zeros} of {told.steps} steps took no time at all"
    if job_seconds is None or all_seconds <= job_seconds * _FASTER + _LATE_SECONDS:
        return None
    batches = told.load_seconds
    with_batches = f" with the reading of batches ({batches:.3g} s)" if batches else ""
    return (
        f"they add up to {all_seconds:.3g} s{with_batches}, and the job ran for {job_seconds:.3g} s"
    )
