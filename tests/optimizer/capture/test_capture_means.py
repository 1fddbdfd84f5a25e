"""Means of a capture: does it save memory for unread values, and pause the collector?"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import captured_from
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.commands.capture import main
from placewire.optimizer.graph.graph_file import load_graph

LARGER_THAN_ANY_MEMORY = """
import torch
from torch import nn
from placewire.optimizer.capture.protocol import TrainingStep

SIDE = 1 << 20

def training_step(batch, seed):
    def batches(step):
        return torch.ones(batch, SIDE), torch.ones(batch, SIDE)
    return TrainingStep(nn.Linear(SIDE, SIDE), batches(0), batches, nn.MSELoss())
"""


def test_the_command_captures_what_no_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "terabytes.py").write_text(LARGER_THAN_ANY_MEMORY)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "graph.json"
    assert main(["terabytes:training_step", "--batch", "2", "--out", str(out)]) == 0
    assert load_graph(out).notes["parameter_bytes"] == 4 * ((1 << 40) + (1 << 20))


class Looks(nn.Module):
    """Says whether the collector is on while it runs."""

    def __init__(self, width: int, tell: Callable[[bool], None]) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 3)
        self.tell = tell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.tell(gc.isenabled())
        result: torch.Tensor = self.linear(x).sum()
        return result


@pytest.mark.parametrize("width", [3, 4])
def test_the_collector_waits_and_is_back_whatever_comes(width: int) -> None:
    x, seen = torch.ones(2, 3), list[bool]()
    step = TrainingStep(Looks(width, seen.append), (x,), lambda number: (x,))
    assert gc.isenabled()
    if width == 3:
        captured_from(step, CaptureOptions("here:step", 2, OptimizerChoice(), 0))
    else:
        with pytest.raises(CaptureError):
            captured_from(step, CaptureOptions("here:step", 2, OptimizerChoice(), 0))
    assert gc.isenabled() and seen and not any(seen)
