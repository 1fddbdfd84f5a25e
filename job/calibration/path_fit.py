"""Set-up latency and throughput of a path, from round trips of messages of several sizes.

A message of n bytes takes p0 + n / rate (thesis, 3.5). A round trip is a message of n bytes and an
answer of the smallest size. What only a large message gets, like the burst that a shaper lets pass
after a pause, is the same for all of them, so that their slope does not have it: p0 is therefore
taken from the smallest messages and the rate from the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PathFit:
    """seconds = setup_seconds + bytes * 8 / bits_per_second; payload."""

    setup_seconds: float
    bits_per_second: float


def fit_path(round_trips: Mapping[int, Sequence[float]]) -> PathFit:
    """round_trips: seconds by the message's bytes; of each size the median counts. The answers have
    the smallest size, so that its round trips are two equal halves.

    The rate is the slope of the least squares line through the larger sizes, of which there are two
    at least. Raises ValueError where larger messages did not take longer.
    """
    smallest, *larger = sorted(round_trips)
    there = statistics.median(round_trips[smallest]) / 2
    took = [statistics.median(round_trips[size]) - there for size in larger]
    mean_bytes, mean_seconds = statistics.fmean(larger), statistics.fmean(took)
    slope = sum(
        (size - mean_bytes) * (seconds - mean_seconds)
        for size, seconds in zip(larger, took, strict=True)
    ) / sum((size - mean_bytes) ** 2 for size in larger)
    if slope <= 0:
        raise ValueError(
            f"messages of {larger[-1]} bytes took no longer than those of {larger[0]}: other work "
            "disturbed the measurement"
        )
    return PathFit(max(0.0, there - smallest * slope), 8 / slope)
