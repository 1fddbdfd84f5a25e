"""Transfer times between devices as the published methods see them: each transfer alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.problem import Problem


@dataclass(frozen=True)
class TransferTimes:
    """setup_seconds, seconds_per_byte float64[D, D]: 0 from a device to itself, inf where two
    servers share no rail."""

    setup_seconds: FloatArray
    seconds_per_byte: FloatArray

    def table(self) -> tuple[list[list[float]], list[list[float]]]:
        """Both as lists, which Python loops read faster."""
        return self.setup_seconds.tolist(), self.seconds_per_byte.tolist()


def transfer_times(problem: Problem) -> TransferTimes:
    """The times with every pair of servers at the rate that it can count on: an even part of its
    NICs where rates are fixed, else its NICs to itself."""
    alone = problem.alone(problem.policy.expected_pair_rates(problem.usable))
    setup, rate = alone.setup, alone.rate
    with np.errstate(divide="ignore"):
        per_byte = 8.0 / rate
    setup = np.where(rate > 0, setup, np.inf)
    here = np.arange(len(rate))
    setup[here, here] = per_byte[here, here] = 0.0
    return TransferTimes(setup, per_byte)
