"""Reads, in one step of a rank on a CPU, how much of the C library's heap is in use on the way.

Resident memory tells less: tensors come and go in sizes of their own, and the heap keeps pages for
the holes between them, half as many again as tensors take in a small transformer.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

from torch import fx

from placewire.job.placed.lower import RankProgram
from placewire.optimizer.capture.execute import with_clock

# A reading goes through all free pieces of the heap, of which there may be many.
_SECONDS = 0.02
_LEAST_READINGS, _MOST_READINGS = 96, 256


class HeapReading:
    """in_use: reads the bytes that are in use now."""

    def __init__(self, program: RankProgram, in_use: Callable[[], int]) -> None:
        one = min(timeit.repeat(in_use, number=1, repeat=3))
        count = min(max(_SECONDS / one, _LEAST_READINGS), _MOST_READINGS)
        names = [*program.operators]
        some = set(names[:: max(1, int(len(names) / count))])
        graph = with_clock(program.module.graph, some, in_use)
        self._module = fx.GraphModule(program.module, graph)

    def run(self, *inputs: Any) -> tuple[Any, int]:
        """Runs the step. Returns what RankProgram.module does, and the most that was in use."""
        reported, readings = self._module(*inputs)
        return reported, max(readings)
