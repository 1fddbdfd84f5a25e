"""Fits set-up latency and throughput of a path to round trips of messages of several sizes.

A message of n bytes takes p0 + n / rate (thesis, 3.5). A round trip is a message of n bytes and an
answer of the smallest size. All large messages gain the same from the burst that a shaper lets pass
after a pause, so that the slope through them does not contain it: p0 is therefore taken from the
smallest messages and the rate from the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PathFit:
    """A message takes setup_seconds + 8 * its payload bytes / bits_per_second."""

    setup_seconds: float
    bits_per_second: float


def fit_path(round_trips: Mapping[int, Sequence[float]]) -> PathFit:
    """round_trips: seconds by message size in bytes, for at least two sizes beside the smallest.
    The median of each size counts. Answers have the smallest size, so that half a round trip of
    that size is one message.

    The rate is that of the least-squares line through the larger sizes. Raises ValueError where
    larger messages did not take longer.
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
            f"messages of {larger[-1]} bytes took no longer than messages of {larger[0]} bytes: "
            "other work disturbed the measurement"
        )
    return PathFit(max(0.0, there - smallest * slope), 8 / slope)
