"""Rates in proportion to known traffic, as large as the NICs and the uplinks of pods allow."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.network.nics import Capacity, network_limits


def concurrent_rates(capacity: Capacity, traffic: FloatArray) -> FloatArray:
    """float64[S, S, R], from what the network carries and the traffic float64[S, S].

    On each rail, all rates are the traffic times one factor, at which the first NIC or uplink is
    full. So transfers that start together end together. (This is the maximum concurrent flow of
    one rail, whose paths are fixed.)
    """
    usable = capacity.nics
    both = (usable > 0)[:, None, :] & (usable > 0)[None, :, :]
    # Any finite weights may be given: their sum must be finite, and no factor may overflow.
    traffic = traffic / (traffic.max(initial=0.0) or 1.0)
    wanted = traffic[:, :, None] * both
    busiest = np.maximum(wanted.sum(axis=1), wanted.sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(busiest > 0, usable / busiest, np.inf).min(axis=0)
    if len(capacity.uplinks):
        limits = network_limits(capacity)
        load = limits.load(wanted)
        room = np.divide(limits.capacity, load, out=np.full_like(load, np.inf), where=load > 0)
        factor = np.minimum(factor, room.min(axis=1))
    factor[np.isinf(factor)] = 0.0
    rates: FloatArray = wanted * factor
    return rates
