"""Validation is captured: what it computes, what it reads, and what cannot be validated."""

from __future__ import annotations

import pytest
import torch

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.models import validated
from tests.optimizer.capture.eager import train_captured

ADAMW = OptimizerChoice("adamw", 1e-2)


def captured(name: str, accumulate: int = 1, shards: int = 1) -> CapturedStep:
    return capture(f"tests.models.validated:{name}", 4, ADAMW, 3, accumulate, shards=shards)


def test_it_changes_nothing_of_the_training() -> None:
    with_validation, without = captured("dropping"), captured("dropping_unvalidated")
    assert without.validation is None and not without.operators.notes["validation"]
    assert with_validation.operators.notes["validation"]
    assert with_validation.operators.structure_hash == without.operators.structure_hash
    one, other = train_captured(with_validation, 3), train_captured(without, 3)
    assert one.losses == other.losses
    assert all(torch.equal(value, other.values[name]) for name, value in one.values.items())


def test_it_reads_the_values_of_the_training_and_writes_none() -> None:
    step = captured("dropping")
    validation = step.validation
    assert validation is not None and not validation.code.writers
    held = {node.name for node in validation.nodes.values() if node.op == "placeholder"}
    assert held - validation.code.inputs.keys() <= step.values.keys()
    assert "buffer_model_norm_running_mean" in held
    assert all(validation.values[name] is step.values[name] for name in validation.values)
    # Only evaluation reads it: every rank keeps it.
    (own,) = [k for k, name in validation.code.constant_names.items() if "temperature" in name]
    assert step.code.constants[own] is validation.code.constants[own]
    assert step.names.constants[own].key == "model.temperature"
    kinds = set(validation.operators.types)
    assert not [kind for kind in kinds if "dropout" in kind or "backward" in kind]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("writing", "in evaluation mode: the model writes buffer model.seen; a validation must"),
        ("reading_more", "in evaluation mode: the model reads model.other.weight, which no traini"),
        ("branching", "validated.py:.*a branch on the values of a tensor"),
    ],
)
def test_what_cannot_be_validated_is_refused(name: str, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        captured(name)


def test_a_refused_model_is_left_in_training_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    step = validated.writing(4, 0)
    monkeypatch.setattr(validated, "writing", lambda batch, seed: step)
    with pytest.raises(CaptureError):
        captured("writing")
    assert all(part.training for part in step.model.modules())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "another_shape",
            r"validation\(0\) returned int64\[5, 8\].*example_inputs are int64\[4",
        ),
        ("failing", r"validation\(0\) failed at .*validated.py:\d+.*held_out.txt"),
    ],
)
def test_a_wrong_batch_is_refused(name: str, words: str) -> None:
    validation = captured(name).validation
    assert validation is not None
    with pytest.raises(CaptureError, match=words):
        validation.batches(0)
