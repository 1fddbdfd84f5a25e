"""A model that scales its loss is refused, since nothing would unscale its gradients."""

from __future__ import annotations

import pytest
import torch

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice


def captured(name: str) -> CapturedStep:
    return capture(f"tests.models.scaled:{name}", 4, OptimizerChoice(), 0)


@pytest.mark.parametrize(
    ("name", "scaler"),
    [("training_step", "GradScaler"), ("sharded", "ShardedGradScaler")],
)
def test_the_line_that_scales_the_loss_is_named_with_what_to_do(name: str, scaler: str) -> None:
    before = torch.amp.GradScaler.scale
    with pytest.raises(CaptureError) as refused:
        captured(name)
    said = str(refused.value)
    assert "tests/models/scaled.py:20: `scaled: torch.Tensor = self.scaler.scale(" in said
    assert f".{scaler} scales cannot be trained" in said
    assert "give its settings in the plan as job.optimizer.scaler" in said
    assert torch.amp.GradScaler.scale is before


@pytest.mark.parametrize("name", ["disabled", "disabled_sharded"])
def test_a_scaler_that_is_disabled_scales_nothing(name: str) -> None:
    assert captured(name).operators.types == captured("unscaled").operators.types


def test_a_scaler_that_pytorch_disables_for_want_of_cuda_scales_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="CUDA is not available"):
        step = captured("without_cuda")
    assert step.operators.types == captured("unscaled").operators.types
