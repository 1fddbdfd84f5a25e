"""Does a rank take the memory that its placement says?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.job.memory import cut, peaks
from optimizer.capture.step import capture
from optimizer.capture.updates import OptimizerChoice
from ranks import run_ranks

MODEL = {"kind": "placed", "model": "examples.models.mlp:training_step", "batch": 4096}


def test_a_rank_takes_what_is_predicted(tmp_path: Path) -> None:
    captured = capture(str(MODEL["model"]), 4096, OptimizerChoice(), 0).operators
    graph = captured.with_seconds({"cpu": np.full(captured.operator_count, 1e-3)})
    placement = cut(graph, 1)
    (rank,) = run_ranks(placement, tmp_path, **MODEL, steps=3)
    (predicted,) = peaks(graph, placement).values()
    tensors, program = rank.finished.step_memory_bytes, rank.finished.program_memory_bytes
    assert tensors is not None and program is not None and predicted > 30 << 20
    assert 0.9 * predicted < tensors < 1.1 * predicted
    assert 100 << 20 < program < program + tensors <= rank.finished.peak_memory_bytes
