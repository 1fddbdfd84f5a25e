"""Scheduler `fifo`: each device runs what became ready first, as FlexFlow's simulator does.

Jia, Zaharia, Aiken: "Beyond data and model parallelism for deep neural networks" (MLSys 2019),
section 5: tasks of a device run in the order in which they became ready, transfers in the order of
being sent. Under a sharing without first-come channels, ready times are those with such channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewire.optimizer.graph.operator_graph import FloatArray, IntArray
from placewire.optimizer.network.sharing import decides_rates, rates_in_force
from placewire.optimizer.problem import Problem

if TYPE_CHECKING:
    from placewire.optimizer.kernels.tables import Tables


def by_arrival(problem: Problem, device: IntArray, tables: Tables | None = None) -> FloatArray:
    """float64[n]: a priority under which operators on device int64[n] start in that order, rates
    following the traffic where they are decided. tables: the problem's, where they are made."""
    from placewire.optimizer.kernels.simulation.network import (
        channel_rates,
        device_traffic,
        proportional_rates,
    )
    from placewire.optimizer.kernels.tables import make_tables
    from placewire.optimizer.published.kernels import arrival

    tables = make_tables(problem) if tables is None else tables
    device = np.ascontiguousarray(device, dtype=np.int64)
    traffic = device_traffic(tables, device)
    if decides_rates(problem):
        rates = proportional_rates(tables, traffic)
    else:
        rates = np.ascontiguousarray(rates_in_force(problem, None))
    turn = np.full(len(device), len(device), dtype=np.int64)
    arrival.by_arrival(tables, device, channel_rates(tables, traffic, rates), turn)
    return -turn.astype(np.float64)
