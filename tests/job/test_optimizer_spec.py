"""A rank makes the same settings of what it is told as the user gave, in whatever way they write a
number: the structure of the step, which ranks compare, has the settings as text."""

from __future__ import annotations

from typing import Any

import pytest

from placewire.job.contract.specification import OptimizerSpec
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.commands.model_arguments import parse_optimizer

# (with whole numbers, the same with a point)
ALIKE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"clip_norm": 1}, {"clip_norm": 1.0}),
    ({"lr": 1}, {"lr": 1.0}),
    ({"groups": [{"match": ["bias"], "lr": 1}]}, {"groups": [{"match": ["bias"], "lr": 1.0}]}),
    ({"scaler": {"init_scale": 1024}}, {"scaler": {"init_scale": 1024.0}}),
    (
        {"schedule": {"name": "linear", "total_steps": 4, "final": 0}},
        {"schedule": {"name": "linear", "total_steps": 4, "final": 0.0}},
    ),
    ({"options": {"weight_decay": 0}}, {"options": {"weight_decay": 0.0}}),
]


@pytest.mark.parametrize("whole, point", ALIKE)
def test_a_rank_has_the_settings_of_the_graph(whole: dict[str, Any], point: dict[str, Any]) -> None:
    graphs = OptimizerChoice.of(whole).signature
    ranks = OptimizerChoice.of(OptimizerSpec.model_validate(whole).model_dump()).signature
    assert graphs == ranks == OptimizerChoice.of(point).signature


@pytest.mark.parametrize("value", ['"1"', "true", "[1]"])
@pytest.mark.parametrize("key", ["clip_norm", "lr"])
def test_what_is_no_number_is_refused_by_its_key(key: str, value: str) -> None:
    with pytest.raises(CaptureError, match=f"{key} .* must be a number"):
        parse_optimizer(f'{{"{key}": {value}}}')
