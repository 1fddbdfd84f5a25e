"""What a state of the search costs: one whole simulation, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.fluid import fluid
from placewire.optimizer.kernels.simulation.memory import peak_memory, static_memory
from placewire.optimizer.kernels.simulation.network import (
    ceilings,
    channel_rates,
    device_traffic,
    proportional_rates,
)
from placewire.optimizer.kernels.simulation.schedule import by_priority, contention_free
from placewire.optimizer.kernels.tables import CHANNELS, FREE, Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Scoring(NamedTuple):
    """How a state is scored, beside what Tables say of the model and the sharing.

    proportional: rates by the rule of network.proportional_rates; else `rates` float64[S, S, R],
    the decision where there is one (sharing.decides_rates), and what is in force where not.
    check_memory: False where everything fits on every device. reference_seconds: what a state is
    charged for exceeding a device's memory by a tenth, so that the search may cross such states.
    """

    proportional: bool
    check_memory: bool
    reference_seconds: float
    rates: FloatArray


@compiled
def cost(
    tables: Tables, scoring: Scoring, device: IntArray, priority: FloatArray
) -> tuple[float, float]:
    """(step seconds and the charge for memory, inf where nothing runs; excess: the sum over devices
    of what is missing, as a fraction of the device's memory)."""
    n, m = len(device), len(tables.producer)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(m)
    position = np.empty(n, dtype=np.int64)
    step = 0.0
    traffic = np.empty((0, 0))
    if scoring.proportional or tables.discipline == CHANNELS:
        traffic = device_traffic(tables, device)
    rates = proportional_rates(tables, traffic) if scoring.proportional else scoring.rates
    minimums = rates
    if tables.lends:
        rates = ceilings(tables.nic_rates, minimums)
    if tables.discipline == FREE:
        step = contention_free(
            tables, device, tables.topological, rates, start, finish, sent, position
        )
    elif tables.discipline == CHANNELS:
        channels = channel_rates(tables, traffic, rates)
        step = by_priority(tables, device, priority, channels, start, finish, sent, position)
    else:
        edges, rails = len(tables.consumers), tables.nic_rates.shape[1]
        messages = fluid(
            tables, rates, minimums, device, priority, np.empty(0, dtype=np.int64),
            start, finish, sent, position,
            np.empty(edges, dtype=np.int64), np.empty(edges, dtype=np.int64),
            np.empty((edges, rails)), np.empty((edges, rails)), np.empty((0, 0)),
        )  # fmt: skip
        if messages < 0:
            return np.inf, 0.0
        for i in range(n):
            step = max(step, finish[i])
    if not scoring.check_memory or step == np.inf:
        return step, 0.0
    if tables.discipline == FREE:
        peak = static_memory(tables, device)
    else:
        peak = peak_memory(tables, device, position, start, sent)
    excess = 0.0
    for d in range(len(peak)):
        if peak[d] > tables.memory_bytes[d]:
            excess += (peak[d] - tables.memory_bytes[d]) / max(tables.memory_bytes[d], 1.0)
    return step + 10.0 * excess * scoring.reference_seconds, excess
