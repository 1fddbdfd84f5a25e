"""How much of its rate each NIC of a server received while a script trained there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.job.nic_samples import Sample
from placewire.controller.page.nic_panels import rates
from placewire.controller.records.nic_use import NicUse, NicUseRow

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
class Received:
    """By a NIC in one step on average. mean, peak: parts of its rate, over all the time and between
    two samples. at_full_rate_seconds: the least time that its rate allows for these bytes."""

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


def use_of(
    samples: Sequence[Sample],
    steps: Sequence[Step],
    server: str,
    rails: Mapping[str, str],
    rate_bits_per_second: float,
) -> NicUse:
    """From the last sample before the first step to the first one after the last step. rails: by
    NIC. Raises ValueError where samples do not reach as far."""
    before = [k for k, one in enumerate(samples) if one.seconds <= steps[0].begin]
    after = [k for k, one in enumerate(samples) if one.seconds >= steps[-1].end]
    if not before or not after:
        raise ValueError(f"the NICs of {server} were not sampled during all steps")
    within = samples[before[-1] : after[0] + 1]
    zero = within[0].seconds
    return NicUse(
        seconds=tuple(one.seconds - zero for one in within),
        step_end_seconds=tuple(step.end - zero for step in steps),
        nics=tuple(
            NicUseRow(
                server=server,
                rail=rail,
                nic=nic,
                rate_bits_per_second=rate_bits_per_second,
                sent_bytes=tuple(one.sent_bytes.get(nic) for one in within),
                received_bytes=tuple(one.received_bytes.get(nic) for one in within),
            )
            for nic, rail in rails.items()
        ),
    )


def parts_of_rate(use: NicUse, row: NicUseRow) -> tuple[float | None, ...]:
    """What the NIC received between each two samples, as a part of its rate."""
    return tuple(
        None if rate is None else rate / row.rate_bits_per_second
        for rate in rates(use.seconds, row.received_bytes)
    )


def received(use: NicUse, row: NicUseRow) -> Received:
    first, last = row.received_bytes[0], row.received_bytes[-1]
    assert first is not None and last is not None
    full_rate_seconds = 8 * (last - first) / row.rate_bits_per_second
    steps = len(use.step_end_seconds)
    return Received(
        bytes=(last - first) / steps,
        mean=full_rate_seconds / (use.seconds[-1] - use.seconds[0]),
        peak=max(part for part in parts_of_rate(use, row) if part is not None),
        at_full_rate_seconds=full_rate_seconds / steps,
    )


def carrying_seconds(use: NicUse) -> float:
    """The time in which any NIC carries gradients, in one step on average."""
    by_nic = [parts_of_rate(use, row) for row in use.nics]
    carrying = sum(
        use.seconds[k + 1] - use.seconds[k]
        for k, parts in enumerate(zip(*by_nic, strict=True))
        if any(part is not None and part >= CARRIES for part in parts)
    )
    return carrying / len(use.step_end_seconds)
