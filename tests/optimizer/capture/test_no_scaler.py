"""A scaled loss is refused, since nothing would unscale its gradients."""

from __future__ import annotations

import pytest

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice


def test_the_line_that_scales_the_loss_is_named_with_what_to_do() -> None:
    with pytest.raises(CaptureError) as refused:
        capture("tests.models.scaled:training_step", 4, OptimizerChoice(), 0)
    said = str(refused.value)
    assert "tests/models/scaled.py:17: `scaled: torch.Tensor = self.scaler.scale(" in said
    assert "job.autocast: bf16, which needs none" in said
