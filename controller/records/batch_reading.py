"""How long ranks read the batches of their steps, which no step's time contains. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from placewire.job.contract.specification import StepDone

# Of the steps' time; all of it would be gone if batches were read at no cost.
_WORTH_TELLING = 0.05


def about_batches(
    steps: Sequence[StepDone], times: Sequence[float], run: range, devices: Sequence[str]
) -> tuple[str, ...]:
    """Returns a sentence where the reading took long beside the steps. times: seconds of the steps
    of this run, each of its slowest rank. devices: by rank. The first step is left out, where it is
    not alone: before it much is read that is kept."""
    counted, seconds = (run[1:], times[1:]) if len(run) > 1 else (run, times)
    of_rank: dict[int, float] = defaultdict(float)
    longest: dict[int, float] = defaultdict(float)
    for one in steps:
        if one.step in counted:
            of_rank[one.rank] += one.load_seconds
            longest[one.step] = max(longest[one.step], one.load_seconds)
    beside = sum(longest.values())
    if not of_rank or beside <= _WORTH_TELLING * sum(seconds):
        return ()
    slowest = max(of_rank, key=of_rank.__getitem__)
    each = of_rank[slowest] / len(counted)
    return (
        f"batches(step) took {each:.3g} s per step on rank {slowest} ({devices[slowest]}) beside "
        f"the step, which takes {sum(seconds) / len(seconds):.3g} s: no step's time, and no "
        "prediction, has it",
    )
