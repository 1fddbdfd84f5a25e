"""Learning rates: functions of the step's number, as in plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.updates import OptimizerChoice, parameter_update


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (LearningRateSchedule(), [1, 1, 1]),
        (LearningRateSchedule(warmup_steps=4), [0.25, 0.5, 0.75, 1, 1, 1]),
        (LearningRateSchedule("linear", total_steps=4), [1, 0.75, 0.5, 0.25, 0, 0]),
        (LearningRateSchedule("linear", 1, total_steps=3, final=0.5), [1, 1, 0.75, 0.5, 0.5]),
        (LearningRateSchedule("cosine", total_steps=4), [1, 0.8535534, 0.5, 0.1464466, 0, 0]),
        (LearningRateSchedule("step", every_steps=2, decay=0.5), [1, 1, 0.5, 0.5, 0.25]),
        (LearningRateSchedule("step", 1, every_steps=1), [1, 1, 0.1, 0.01]),
    ],
)
def test_factors(schedule: LearningRateSchedule, factors: list[float]) -> None:
    assert [schedule.factor_at(s) for s in range(len(factors))] == pytest.approx(factors)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "poly"}, "accepted: constant, linear, cosine, step"),
        ({"name": "cosine"}, "needs total_steps"),
        ({"name": "step", "every_steps": 0}, "needs every_steps"),
        ({"name": "constant", "final": 0.1}, "takes no final"),
        ({"name": "linear", "total_steps": 3, "warmup_steps": 3}, "must be more than the 3"),
        ({"name": "linear", "total_steps": 3, "final": 2.0}, "final 2 is outside"),
        ({"warmup_steps": -1}, "below 0"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        OptimizerChoice.of({"schedule": given})


def test_the_step_alone_decides_the_rate() -> None:
    """A training that resumes at step 5 has its rate without knowing earlier steps."""
    schedule = LearningRateSchedule("cosine", warmup_steps=2, total_steps=9, final=0.1)
    choice = OptimizerChoice("sgd", 0.5, schedule=schedule)
    parameter, gradient = torch.zeros(3), torch.ones(3)
    update = parameter_update(choice, parameter)
    update.step = 5
    update(parameter, gradient)
    assert torch.equal(parameter, torch.zeros(3) - choice.lr_at(5) * gradient)
    assert choice.lr_at(5) == 0.5 * schedule.factor_at(5) < 0.5


def test_schedules_and_clipping_are_part_of_what_is_trained() -> None:
    plain = OptimizerChoice()
    others = [
        OptimizerChoice(clip_norm=1.0),
        OptimizerChoice(schedule=LearningRateSchedule(warmup_steps=3)),
        OptimizerChoice(schedule=LearningRateSchedule("linear", total_steps=9)),
    ]
    assert len({choice.signature for choice in (plain, *others)}) == 4
    assert "schedule" not in plain.signature and "clip" not in plain.signature


def test_a_clip_norm_must_be_positive() -> None:
    with pytest.raises(CaptureError, match="clip_norm 0 must be more than 0"):
        OptimizerChoice(clip_norm=0.0)
