"""How well lines over small batches estimate the operators of a larger one: Celeritas' figure 5, on
modelled times.

The lines are those of Standard Evaluation (optimizer/profile/rough.py). A capture knows what every
operator leaves at any batch; here that is estimated all the same, as the paper has to.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.profile.rough import at_batch, held_bytes, roughly
from placewire.optimizer.published.comparison.presets.preset import Estimated

# Rounding in a line of whole bytes, and of seconds, is no deviation.
_ROUNDING = 1e-6


def part_within(
    small: Mapping[int, OperatorGraph], wanted: OperatorGraph, batch: int, asked: Estimated
) -> float:
    """small: by batch, the model's graphs; wanted: that at `batch`, whose values are the true ones.
    Raises GraphError where a batch has other operators."""
    rough = roughly(small, wanted, batch)
    if asked.of == "time":
        estimated, true = rough.seconds[:, 0], wanted.seconds[:, 0]
    else:
        batches = np.array(list(small), dtype=np.float64)
        held = np.array([held_bytes(graph) for graph in small.values()])
        estimated, true = at_batch(batches, held, batch), held_bytes(wanted)
    there = true > 0
    off = np.abs(estimated[there] - true[there]) / true[there]
    return float((off <= asked.within + _ROUNDING).mean())
