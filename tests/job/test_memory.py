"""Does a rank take the memory that its placement and the profile predict?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.job.memory import cut, peaks, profiled
from tests.job.ranks import run_ranks

MODEL, BATCH = "placewire.examples.models.mlp:training_step", 16384

# The kernel counts resident pages in batches, one for each processor: two readings of the same peak
# may differ by this much.
COUNTED_LATE_BYTES = 1 << 20


@pytest.mark.thorough
def test_a_rank_takes_what_is_predicted(tmp_path: Path) -> None:
    graph = profiled(MODEL, BATCH, tmp_path)
    placement = cut(graph, 1)
    fields: dict[str, Any] = {"kind": "placed", "model": MODEL, "batch": BATCH, "steps": 3}
    (rank,) = run_ranks(placement, tmp_path, forked=False, **fields)
    (tensors,) = peaks(graph, placement).values()
    steps, program = rank.finished.step_memory_bytes, rank.finished.program_memory_bytes
    assert steps is not None and program is not None and tensors > 250 << 20
    predicted = tensors + graph.notes["program_bytes"]
    # At most a tenth above; below by what the profile's allocator had kept, 12 % as seen.
    assert 0.8 * predicted < steps + program < 1.1 * predicted
    assert steps > 0.9 * tensors
    peak = rank.finished.peak_memory_bytes
    assert 100 << 20 < program < program + steps <= peak + COUNTED_LATE_BYTES
