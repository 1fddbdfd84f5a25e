"""Does a rank take the memory that its placement and the profile say?"""

from __future__ import annotations

from pathlib import Path

from benchmarks.job.memory import cut, peaks, profiled
from ranks import run_ranks

MODEL, BATCH = "examples.models.mlp:training_step", 16384


def test_a_rank_takes_what_is_predicted(tmp_path: Path) -> None:
    graph = profiled(MODEL, BATCH, tmp_path)
    placement = cut(graph, 1)
    fields = {"kind": "placed", "model": MODEL, "batch": BATCH, "steps": 3}
    (rank,) = run_ranks(placement, tmp_path, **fields)
    (tensors,) = peaks(graph, placement).values()
    steps, program = rank.finished.step_memory_bytes, rank.finished.program_memory_bytes
    assert steps is not None and program is not None and tensors > 250 << 20
    predicted = tensors + graph.notes["program_bytes"]
    assert 0.9 * predicted < steps + program < 1.1 * predicted
    assert steps > 0.9 * tensors
    assert 100 << 20 < program < program + steps <= rank.finished.peak_memory_bytes
