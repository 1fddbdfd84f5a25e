"""Scheduler `fifo`: each device runs first what became ready first, as in FlexFlow's simulator.

Jia, Zaharia, Aiken: "Beyond data and model parallelism for deep neural networks" (MLSys 2019),
section 5: the tasks of a device run in the order in which they become ready, transfers in the order
in which they are sent. A sharing without first-come channels uses the ready times that such
channels would give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.schedulers import Scheduler
from placewire.optimizer.problem import Problem

if TYPE_CHECKING:
    from placewire.optimizer.kernels.tables import Tables


def by_arrival(problem: Problem, device: IntArray, tables: Tables | None = None) -> FloatArray:
    """float64[n]: priorities under which operators on device int64[n] start in that order; where
    rates are decided, they follow the traffic. tables: the problem's, if they exist already."""
    from placewire.optimizer.kernels.simulation.first_come import NOT_CHANGED, run_first_come
    from placewire.optimizer.kernels.simulation.occupation import occupation
    from placewire.optimizer.kernels.simulation.transfers import (
        channel_rates,
        device_traffic,
        rates_by_volume,
    )
    from placewire.optimizer.kernels.tables import tables_of
    from placewire.optimizer.simulation.simulate import message_log

    tables = tables_of(problem) if tables is None else tables
    device = np.ascontiguousarray(device, dtype=np.int64)
    traffic = device_traffic(tables, device)
    if problem.decides_rates:
        rates = rates_by_volume(tables, traffic)
    else:
        rates = np.ascontiguousarray(problem.rates_in_force(None))
    n = len(device)
    position = np.full(n, n, dtype=np.int64)
    run_first_come(
        tables, occupation(tables, device), device, np.zeros(n),
        channel_rates(tables, traffic, rates), True,
        np.empty(0, dtype=np.int64), np.empty(n), np.empty(n), np.empty(len(tables.producer)),
        position, message_log(tables), *NOT_CHANGED,
    )  # fmt: skip
    return -position.astype(np.float64)


SCHEDULER = Scheduler(
    "as operators become ready, as FlexFlow does",
    by_arrival,
    paper="Jia et al., FlexFlow (MLSys 2019)",
    section="5",
)
