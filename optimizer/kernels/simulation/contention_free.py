"""Simulates steps whose transfers never meet, in one pass over the operators."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.tables import Tables


@compiled
def contention_free(
    tables: Tables,
    device: IntArray,
    rates: FloatArray,
    start: FloatArray,
    finish: FloatArray,
    sent: FloatArray,
    position: IntArray,
) -> float:
    """Simulates a step by thesis (3.4)-(3.6) and returns its seconds.

    A transfer takes p0 + bytes / b and never waits for another; operators run in the recorded
    topological sort. rates float64[S, S, R]. Fills start, finish, sent and position as
    run_first_come does.
    """
    devices = len(tables.server)
    idle_at = np.zeros(devices)
    done = np.zeros(devices, dtype=np.int64)
    for e in range(len(sent)):
        sent[e] = 0.0
    step = 0.0
    for i in tables.topological:
        a = device[i]
        at = idle_at[a]
        for k in range(tables.inputs_start[i], tables.inputs_start[i + 1]):
            e = tables.inputs[k]
            j = tables.producer[e]
            took = 0.0
            if device[j] != a and tables.bits[e] > 0.0:
                setup, rate = tables.path_setup[device[j], a], tables.path_rate[device[j], a]
                if rate == 0.0:
                    s, t = tables.server[device[j]], tables.server[a]
                    setup = tables.setup_seconds
                    for r in range(rates.shape[2]):
                        rate += rates[s, t, r]
                took = setup + tables.bits[e] / rate if rate > 0.0 else np.inf
                sent[e] = max(sent[e], finish[j] + took)
            at = max(at, finish[j] + took)
        start[i] = at
        finish[i] = at + tables.seconds[i, a]
        idle_at[a] = finish[i]
        position[i] = done[a]
        done[a] += 1
        step = max(step, finish[i])
    return step
