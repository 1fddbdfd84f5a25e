"""Into how many micro-batches and shards a step may be cut, where that is to be decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Auto = Literal["auto"]
# The type of torch.autocast, under which model and loss run.
Autocast = Literal["bf16", "fp16"]
# Which layers are computed again in the backward half: none, every second one, all.
Recompute = Literal["none", "half", "all"]

# More micro-batches make operators slower, and pipelines of this many lose little to their ends.
_MOST_MICRO_BATCHES = 16


@dataclass(frozen=True, order=True)
class Cut:
    accumulate: int
    shards: int


def cuts(
    accumulate: Sequence[int] | Auto,
    shards: Sequence[int] | Auto,
    *,
    batch: int,
    devices: int,
    shardable: bool,
) -> tuple[Cut, ...]:
    """Every combination, without those that are the same: one micro-batch joins no shards.

    `auto` is 1, the number of devices, and the powers of two up to four times that and 16, of which
    those that divide the batch; for shards, 1 and the number of devices. shardable: False where
    shards are refused, as with clipped gradients.
    """
    if accumulate == "auto":
        powers = (2**k for k in range(1, 5))
        most = min(_MOST_MICRO_BATCHES, 4 * devices)
        wanted = {1, devices, *(power for power in powers if power <= most)}
        accumulate = [count for count in wanted if batch % count == 0]
    decides = shards == "auto"
    if shards == "auto":
        shards = [1, devices] if shardable else [1]
    found = {
        Cut(count, 1 if decides and count == 1 else number)
        for count in accumulate
        for number in shards
    }
    return tuple(sorted(found))
