"""Scores one state of the search by simulating the whole step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.contention_free import contention_free
from placewire.optimizer.kernels.simulation.first_come import MessageLog, run_first_come
from placewire.optimizer.kernels.simulation.labelled_bundles import (
    Labels,
    with_labelled_bundles,
)
from placewire.optimizer.kernels.simulation.occupation import occupation
from placewire.optimizer.kernels.simulation.peak_memory import peak_memory, static_memory
from placewire.optimizer.kernels.simulation.shared_rates import run_shared_rates
from placewire.optimizer.kernels.simulation.transfers import (
    channel_rates,
    device_traffic,
    lending_ceilings,
    rates_by_volume,
)
from placewire.optimizer.kernels.tables import FIRST_COME, NEVER_MEET, Tables


class Scoring(NamedTuple):
    """How a state is scored, beside what Tables say of the model and the sharing.

    by_volume: the rates follow the traffic (transfers.rates_by_volume). Else they are `rates`
    float64[S, S, R]: the decided rates if the sharing decides any, else those in force.
    check_memory: False where everything fits on every device. reference_seconds: the charge for
    exceeding a device's memory by a tenth; it is finite, so that the search may cross such states.
    """

    by_volume: bool
    check_memory: bool
    reference_seconds: float
    rates: FloatArray


@compiled
def cost(
    tables: Tables, scoring: Scoring, device: IntArray, priority: FloatArray
) -> tuple[float, float]:
    """Returns (step seconds plus the charge for missing memory, missing_memory); the first is inf
    where the step never ends."""
    n, m = len(device), len(tables.producer)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(m)
    position = np.empty(n, dtype=np.int64)
    step = 0.0
    lasts, traffic = occupation(tables, device), np.empty((0, 0))
    if scoring.by_volume or tables.discipline == FIRST_COME:
        traffic = device_traffic(tables, device)
    rates = rates_by_volume(tables, traffic) if scoring.by_volume else scoring.rates
    minimums = rates
    if tables.lends:
        rates = lending_ceilings(
            tables.nic_rates, tables.limit_groups, tables.limit_capacity, minimums
        )
    if tables.discipline == NEVER_MEET:
        step = contention_free(tables, device, rates, start, finish, sent, position)
    elif tables.discipline == FIRST_COME:
        channels = channel_rates(tables, traffic, rates)
        step, _, _ = run_first_come(
            tables, lasts, device, priority, channels, False, None, start, finish, sent, position,
            None, None, None, None, None, None, None, None, 0, 0, np.inf, 0,
        )  # fmt: skip
    else:
        edges, rails = len(tables.consumers), tables.nic_rates.shape[1]
        log = MessageLog(
            np.empty(edges, dtype=np.int64), np.empty(edges, dtype=np.int64),
            np.empty((edges, rails)), np.empty((edges, rails)),
        )  # fmt: skip
        messages = run_shared_rates(
            tables, lasts, rates, minimums, device, priority, np.empty(0, dtype=np.int64),
            start, finish, sent, position, log, np.empty((0, 0)),
        )  # fmt: skip
        if messages < 0:
            return np.inf, 0.0
        for i in range(n):
            step = max(step, finish[i])
    if not scoring.check_memory or step == np.inf:
        return step, 0.0
    if tables.discipline == NEVER_MEET:
        peak = static_memory(tables, device)
    else:
        peak = peak_memory(tables, device, position, start, sent)
    excess = missing_memory(tables, peak)
    return step + 10.0 * excess * scoring.reference_seconds, excess


@compiled
def bundled_cost(
    tables: Tables, labels: Labels, scoring: Scoring, device: IntArray, priority: FloatArray
) -> tuple[float, float]:
    """As cost, where tensors of one label share messages."""
    if len(labels.label) == 0:
        return cost(tables, scoring, device, priority)
    made, on, urgency = with_labelled_bundles(tables, labels, device, priority)
    return cost(made, scoring, on, urgency)


@compiled
def missing_memory(tables: Tables, peak: FloatArray) -> float:
    """The sum over devices of what the peak float64[D] exceeds, as a fraction of their memory."""
    excess = 0.0
    for d in range(len(peak)):
        if peak[d] > tables.memory_bytes[d]:
            excess += (peak[d] - tables.memory_bytes[d]) / max(tables.memory_bytes[d], 1.0)
    return excess
