"""Simulated annealing under any sharing: after each move the whole step is simulated."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.annealing.cost import Scoring, bundled_cost
from placewire.optimizer.kernels.annealing.proposals import (
    Guide,
    Neighbourhood,
    choose_kind,
    propose,
)
from placewire.optimizer.kernels.compiled import compiled
from placewire.optimizer.kernels.simulation.labelled_bundles import Labels
from placewire.optimizer.kernels.tables import Tables

# Moves in one window.
_IN_WINDOW = 50


@compiled
def anneal(
    tables: Tables, labels: Labels, scoring: Scoring, hood: Neighbourhood, guide: Guide,
    device: IntArray, priority: FloatArray, best_device: IntArray, best_priority: FloatArray,
    moves: int, hot: float, cold: float, seed: int, weights: FloatArray, tries: FloatArray,
    wins: FloatArray,
) -> tuple[float, float]:  # fmt: skip
    """Tries `moves` moves while cooling from temperature hot to cold (seconds).

    Changes device and priority in place. The caller puts the state given into best_device and
    best_priority; each better state (less excess, or as much and less cost) replaces it there.
    Returns (best cost, best excess).

    Kinds of moves are drawn in proportion to weights float64[KINDS]; tries and wins float64[KINDS]
    count how often each kind was tried, and how often it was an improvement.
    """
    np.random.seed(seed)
    n = len(device)
    op, to, was = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    stamp = np.full(n, -1, dtype=np.int64)
    current, best_excess = bundled_cost(tables, labels, scoring, device, priority)
    best = current
    span = min(n, max(64, n // 24))
    low, high = 0, n
    for move in range(moves):
        temperature = hot * (cold / hot) ** (move / moves)
        if move % _IN_WINDOW == 0:
            low, high = 0, n
            if np.random.random() < 0.7:
                low = np.random.randint(n - span + 1)
                high = low + span
        kind = choose_kind(weights)
        count, urgent = propose(
            tables, hood, guide, device, priority, kind, low, high, op, to, stamp, move
        )
        tries[kind] += 1.0
        if count == 0:
            continue
        level = priority[op[0]]
        if to[0] < 0:
            priority[op[0]] = urgent
        else:
            for k in range(count):
                was[k] = device[op[k]]
                device[op[k]] = to[k]
        tried, excess = bundled_cost(tables, labels, scoring, device, priority)
        gain = current - tried
        if gain >= 0.0 or np.random.random() < np.exp(gain / temperature):
            if gain > 0.0:
                wins[kind] += 1.0
            current = tried
            if excess < best_excess or (excess == best_excess and tried < best):
                best, best_excess = tried, excess
                for j in range(n):
                    best_device[j] = device[j]
                    best_priority[j] = priority[j]
        elif to[0] < 0:
            priority[op[0]] = level
        else:
            for k in range(count):
                device[op[k]] = was[k]
    return best, best_excess
