"""A step on a GPU: what is moved there, and what happens on a machine without one.

What needs a CUDA device is in tests/job/test_cuda.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.moving import on_device
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.stepped import Seeder, operator_seed
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.commands.profile import main

MLP = "placewire.examples.models.mlp:training_step"
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


def tied_step() -> TrainingStep:
    model = nn.Sequential(nn.Embedding(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 4, bias=False))
    model[2].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    example = (torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.int64))
    loss = nn.CrossEntropyLoss(weight=torch.ones(4))
    return TrainingStep(model, example, lambda number: example, loss)


def test_all_of_a_step_is_moved_and_ties_stay() -> None:
    there = torch.device("meta")
    step = on_device(tied_step(), there)
    assert step.loss is not None
    for module in (step.model, step.loss):
        assert all(tensor.device == there for tensor in module.state_dict().values())
    assert isinstance(step.model, torch.nn.Sequential)
    assert step.model[2].weight is step.model[0].weight
    needs = {name: p.requires_grad for name, p in step.model.named_parameters()}
    assert needs == {"0.weight": True, "1.weight": True, "1.bias": False}
    assert all(tensor.device == there for tensor in (*step.example_inputs, *step.batches(0)))


def test_random_operators_are_seeded_where_they_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    before = torch.get_rng_state()
    Seeder(3, 17, "cuda")()
    assert seeds == [operator_seed(3, 0, 17)]
    assert torch.equal(torch.get_rng_state(), before)
    Seeder(3, 17)()
    assert len(seeds) == 1 and not torch.equal(torch.get_rng_state(), before)


@without_cuda
def test_a_machine_without_cuda_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError, match="CUDA device, but this machine has none"):
        capture(MLP, 4, OptimizerChoice(), 0, device_type="cuda")
    arguments = [MLP, "--batch", "4", "--device-type", "a100", "--out", str(tmp_path / "g.json")]
    assert main(arguments) == 3
    assert "this machine has none" in capsys.readouterr().err
