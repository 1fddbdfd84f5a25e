"""Counts how much the NICs of a server received while a script trained there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.job.nic_samples import Sample
from placewire.controller.page.nic_panels import rates

# A NIC that receives less than this part of its rate carries no gradients.
CARRIES = 0.1
# rival.py prints it; `controller apply` puts its own time and the rank before it.
_STEP = re.compile(r"^(?:.* rank 0 \| \[0\] )?step ([\d.]+) ended ([\d.]+)$", re.M)


@dataclass(frozen=True)
class Step:
    """When it began and ended, in seconds of the machine's monotonic clock."""

    begin: float
    end: float


@dataclass(frozen=True)
class NicReception:
    """received_bytes: all that the NIC had received at each sample, with headers."""

    nic: str
    rate_bits_per_second: float
    received_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Reception:
    """seconds: of each sample, since the first one. step_end_seconds: when rank 0 had ended each
    step, by the same clock."""

    seconds: tuple[float, ...]
    step_end_seconds: tuple[float, ...]
    nics: tuple[NicReception, ...]


@dataclass(frozen=True)
class Use:
    """Of a NIC. bytes: received in one step on average. mean, peak: parts of its rate, over all the
    time and between two samples. at_full_rate_seconds: the least time that its rate allows for the
    bytes of a step."""

    bytes: float
    mean: float
    peak: float
    at_full_rate_seconds: float


def steps_of(said: str) -> tuple[Step, ...]:
    """The steps of rank 0 in what a run of rival.py printed. Raises ValueError if it has none."""
    found = [(float(took), float(end)) for took, end in _STEP.findall(said)]
    if not found:
        raise ValueError(f"rank 0 printed no step\n{said[-2000:]}")
    return tuple(Step(end - took, end) for took, end in found)


def reception_of(
    samples: Sequence[Sample], steps: Sequence[Step], nics: Sequence[str], rate: float
) -> Reception:
    """From the last sample before the first step to the first one after the last step. rate: of
    each NIC, in bits per second. Raises ValueError where samples do not reach as far."""
    before = [k for k, one in enumerate(samples) if one.seconds <= steps[0].begin]
    after = [k for k, one in enumerate(samples) if one.seconds >= steps[-1].end]
    if not before or not after:
        raise ValueError("the NICs were not sampled during all steps")
    within = samples[before[-1] : after[0] + 1]
    zero = within[0].seconds
    return Reception(
        seconds=tuple(one.seconds - zero for one in within),
        step_end_seconds=tuple(step.end - zero for step in steps),
        nics=tuple(
            NicReception(nic, rate, tuple(one.received_bytes[nic] for one in within))
            for nic in nics
        ),
    )


def parts_of_rate(had: Reception, row: NicReception) -> tuple[float | None, ...]:
    """Returns the part of its rate that the NIC received between each two samples; None where its
    counter went back."""
    return tuple(
        None if rate is None else rate / row.rate_bits_per_second
        for rate in rates(had.seconds, row.received_bytes)
    )


def use_of(had: Reception, row: NicReception) -> Use:
    received = row.received_bytes[-1] - row.received_bytes[0]
    full_rate_seconds = 8 * received / row.rate_bits_per_second
    steps = len(had.step_end_seconds)
    return Use(
        bytes=received / steps,
        mean=full_rate_seconds / (had.seconds[-1] - had.seconds[0]),
        peak=max(part for part in parts_of_rate(had, row) if part is not None),
        at_full_rate_seconds=full_rate_seconds / steps,
    )


def carrying_seconds(had: Reception) -> float:
    """The time in which any NIC carries gradients, in one step on average."""
    by_nic = [parts_of_rate(had, row) for row in had.nics]
    carrying = sum(
        had.seconds[k + 1] - had.seconds[k]
        for k, parts in enumerate(zip(*by_nic, strict=True))
        if any(part is not None and part >= CARRIES for part in parts)
    )
    return carrying / len(had.step_end_seconds)
