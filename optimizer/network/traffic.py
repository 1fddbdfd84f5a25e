"""Rates in proportion to traffic that is known, as large as the NICs allow."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray


def concurrent_rates(usable: FloatArray, traffic: FloatArray) -> FloatArray:
    """float64[S, S, R], from what each NIC carries float64[S, R] and the traffic float64[S, S].

    On each rail the pairs share one factor, at which the first NIC is full (the maximum concurrent
    flow of one rail, whose paths are fixed), so that transfers that start together end together.
    """
    both = (usable > 0)[:, None, :] & (usable > 0)[None, :, :]
    wanted = traffic[:, :, None] * both
    busiest = np.maximum(wanted.sum(axis=1), wanted.sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(busiest > 0, usable / busiest, np.inf).min(axis=0)
    factor[np.isinf(factor)] = 0.0
    rates: FloatArray = wanted * factor
    return rates
