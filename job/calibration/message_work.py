"""Computes what processor time messages take, from exchanges in which a rank did nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from placewire.optimizer.cluster import MessageTime

# An exchange whose messages are smaller on average says what a message takes, a larger one what
# its bytes do.
_SMALL_BYTES, _LARGE_BYTES = 64, 64 * 1024


@dataclass(frozen=True)
class Work:
    """Messages that a rank sent or took in an exchange, their bytes, and the time of its processor,
    all threads together."""

    messages: int
    bytes: int
    seconds: float


def message_work(work: Sequence[Work]) -> MessageTime | None:
    """The medians over exchanges; None where no exchange was small."""
    small = [one.seconds / one.messages for one in work if one.bytes <= _SMALL_BYTES * one.messages]
    if not small:
        return None
    each = statistics.median(small)
    large = [
        max(0.0, one.seconds - each * one.messages) / one.bytes
        for one in work
        if one.bytes > _LARGE_BYTES * one.messages
    ]
    return MessageTime(each, statistics.median(large) if large else 0.0)
