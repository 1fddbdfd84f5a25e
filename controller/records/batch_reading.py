"""How long ranks read the batches of their steps, which no step's time contains. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Of the steps' time; all of it would be gone if batches were read at no cost.
_WORTH_TELLING = 0.05


def about_batches(
    loads: Mapping[int, Sequence[float]], times: Sequence[float], devices: Sequence[str]
) -> tuple[str, ...]:
    """Returns a sentence where the reading took long beside the steps. loads: by rank, how long it
    read the batch of each step, or on average that of each few steps. times: seconds of the same
    steps, each of its slowest rank. devices: by rank. The first is left out, where it is not alone:
    before it much is read that is kept."""
    first = 1 if len(times) > 1 else 0
    seconds = times[first:]
    counted = {rank: of_steps[first:] for rank, of_steps in loads.items()}
    beside = sum(map(max, zip(*counted.values(), strict=True)))
    if beside <= _WORTH_TELLING * sum(seconds):
        return ()
    slowest = max(counted, key=lambda rank: sum(counted[rank]))
    each, own, step = (
        total / len(seconds) for total in (beside, sum(counted[slowest]), sum(seconds))
    )
    return (
        f"a step waits {each:.3g} s for batches(step), and takes {step:.3g} s "
        f"beside that: no step's time, and no prediction, has it. Rank {slowest} "
        f"({devices[slowest]}) reads longest, {own:.3g} s",
    )
