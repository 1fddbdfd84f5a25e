"""Judges the times of steps that ranks told, against the clock of the controller. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.job.contract.specification import RankEvent, StepDone

# A rank's clock may run faster than ours, and ours is read a moment late.
_FASTER = 1.01
_LATE_SECONDS = 1.0


def believed(
    events: Sequence[RankEvent], devices: Sequence[str], job_seconds: float | None
) -> tuple[list[StepDone], tuple[str, ...]]:
    """Returns the steps of ranks whose times are possible, and a sentence for each other rank that
    told of steps. devices: by rank. job_seconds: how long the job took here; None: not known."""
    told: dict[int, list[StepDone]] = {}
    for event in events:
        if isinstance(event, StepDone):
            told.setdefault(event.rank, []).append(event)
    good: list[StepDone] = []
    notes: list[str] = []
    for rank, steps in sorted(told.items()):
        beside = sum(step.load_seconds for step in steps)
        if (why := _impossible([step.seconds for step in steps], beside, job_seconds)) is None:
            good += steps
        else:
            notes.append(
                f"the step times that rank {rank} ({devices[rank]}) told are not used: {why}"
            )
    return good, tuple(notes)


def _impossible(
    seconds: Sequence[float], load_seconds: float, job_seconds: float | None
) -> str | None:
    """load_seconds: of all batches together."""
    all_seconds = sum(seconds) + load_seconds
    if (zeros := seconds.count(0)) > 0:
        return f"{zeros} of {len(seconds)} steps took no time at all"
    if job_seconds is None or all_seconds <= job_seconds * _FASTER + _LATE_SECONDS:
        return None
    with_batches = f" with the reading of batches ({load_seconds:.3g} s)" if load_seconds else ""
    return (
        f"they add up to {all_seconds:.3g} s{with_batches}, and the job ran for {job_seconds:.3g} s"
    )
