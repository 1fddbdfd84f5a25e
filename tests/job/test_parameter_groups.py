"""Parameters with settings of their own: trained as torch's param_groups train them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

from placewire.controller.plan.job_optimizer import PlanOptimizer
from placewire.job.contract.specification import OptimizerSpec, ParameterGroupSpec
from placewire.job.placed.plain_state import read_checkpoint
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.parameter_groups import require_all_used
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.commands.model_arguments import parse_optimizer
from tests.job.test_checkpoint import STEPS, eager, job

MODEL = "tests.models.small:gpt2"
# No decay of norms and biases, and a slower embedding: what language models are trained with.
GROUPS = (
    ParameterGroupSpec(match=("bias", "*norm*.weight"), options={"weight_decay": 0.0}),
    ParameterGroupSpec(match=("*embedding*",), lr=1e-3),
)
KINDS = {
    "adamw": (torch.optim.AdamW, OptimizerSpec(lr=1e-2, options={"weight_decay": 0.3})),
    "adam": (torch.optim.Adam, OptimizerSpec(name="adam", lr=1e-2, options={"weight_decay": 0.1})),
    "sgd": (
        torch.optim.SGD,
        OptimizerSpec(name="sgd", lr=0.1, options={"momentum": 0.9, "weight_decay": 0.1}),
    ),
}


def torch_groups(model: nn.Module, spec: OptimizerSpec) -> list[dict[str, Any]]:
    """As a user would write them."""
    plain, bare, slow = list[nn.Parameter](), list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or ("norm" in name and name.endswith("weight")):
            bare.append(parameter)
        elif "embedding" in name:
            slow.append(parameter)
        else:
            plain.append(parameter)
    assert plain and bare and slow
    decay = spec.options["weight_decay"]
    return [
        {"params": plain, "lr": spec.lr, "weight_decay": decay},
        {"params": bare, "lr": spec.lr, "weight_decay": 0.0},
        {"params": slow, "lr": 1e-3, "weight_decay": decay},
    ]


@pytest.mark.parametrize("name", KINDS)
def test_groups_train_as_in_plain_pytorch_and_are_saved(tmp_path: Path, name: str) -> None:
    kind, plain = KINDS[name]
    spec = plain.model_copy(update={"groups": GROUPS})
    placed = job(tmp_path, devices=3, model=MODEL, optimizer=spec)
    assert len(placed.ranks) == 3
    step = load_training_step(MODEL, 4, seed=3)
    more = {"momentum": 0.9} if name == "sgd" else {}
    optimizer = kind(torch_groups(step.model, spec), fused=True, **more)
    assert placed.train(range(STEPS)) == eager(step, optimizer, range(STEPS))
    ours = placed.state(STEPS)
    for key, value in step.model.state_dict().items():
        assert torch.equal(ours[f"model.{key}"], value), key

    one = job(tmp_path / "one", model=MODEL, optimizer=spec)
    one.begin()
    one.train(range(STEPS))
    saved = one.checkpoints[0].save(STEPS)
    assert saved is not None
    other = load_training_step(MODEL, 4, seed=9)
    again = kind(torch_groups(other.model, spec), fused=True, **more)
    state = read_checkpoint(saved.path)
    groups = state["optimizer"]["param_groups"]
    assert sorted((g["lr"], g["weight_decay"]) for g in groups) == sorted(
        (g["lr"], g["weight_decay"]) for g in optimizer.param_groups
    )
    set_optimizer_state_dict(other.model, again, state["optimizer"])
    for mine, theirs in zip(again.param_groups, optimizer.param_groups, strict=True):
        assert (mine["lr"], mine["weight_decay"]) == (theirs["lr"], theirs["weight_decay"])


def test_what_is_updated_alike_lies_together() -> None:
    """Small weights share tensors where a step has shards, but not with another group's."""
    choice = OptimizerChoice.of(OptimizerSpec(groups=GROUPS).model_dump())
    code = capture(MODEL, 8, choice, 0, accumulate=2, shards=2).code
    assert code.members
    for node, members in code.members.items():
        expected = code.choice_of(choice, node).signature
        assert {choice.of_parameter(m.names).signature for m in members} == {expected}
    assert len({code.choice_of(choice, node).signature for node in code.members}) > 1


def test_each_name_fits_its_parameter_also_where_small_ones_lie_together() -> None:
    whole = capture(MODEL, 8, OptimizerChoice(), 0).code
    choice = OptimizerChoice.of({"groups": [{"match": [*whole.trained], "lr": 0.1}]})
    cut = capture(MODEL, 8, choice, 0, accumulate=2, shards=2).code
    assert any(len(members) > 1 for members in cut.members.values())
    assert sorted(cut.trained) == sorted(whole.trained)


def test_a_pattern_without_parameters_is_refused() -> None:
    groups = (*GROUPS, ParameterGroupSpec(match=("*.weight", "biass")))
    choice = OptimizerChoice.of(OptimizerSpec(groups=groups).model_dump())
    with pytest.raises(CaptureError, match=r"groups\[2\]: no trained .* 'biass'; the model has"):
        capture(MODEL, 4, choice, 0)
    choice = OptimizerChoice.of({"groups": [{"match": ["bias", "*norm.weight"]}]})
    capitals = r"'\*norm\.weight'; capital letters count, and there is a\.LayerNorm\.weight"
    with pytest.raises(CaptureError, match=capitals):
        require_all_used(choice.groups, ["a.bias", "a.LayerNorm.weight"])
    require_all_used(choice.groups, ["a.bias", "a.norm.weight"])
    with pytest.raises(CaptureError, match="no option 'momentum'"):
        OptimizerChoice.of({"groups": [{"match": ["*"], "options": {"momentum": 0.9}}]})


@pytest.mark.parametrize("group", [{}, {"match": "bias"}, {"match": []}, {"match": ["b"], "l": 1}])
def test_a_group_that_says_nothing_is_no_traceback(group: dict[str, Any]) -> None:
    with pytest.raises(CaptureError, match=r"--optimizer .*(`match`|'l').* accepted: "):
        parse_optimizer(json.dumps({"groups": [group]}))


def test_where_a_group_s_weight_decay_stands_is_told() -> None:
    """A plan has it beside the options."""
    with pytest.raises(CaptureError, match=r"takes match, lr, options; as options: \{"):
        parse_optimizer('{"groups": [{"match": ["bias"], "weight_decay": 0}]}')


def test_a_plan_says_groups() -> None:
    document = {"weight_decay": 0.1, "groups": [{"match": ["bias"], "weight_decay": 0}]}
    (group,) = PlanOptimizer.model_validate(document).groups
    assert group.document == {"match": ["bias"], "lr": None, "options": {"weight_decay": 0.0}}
    choice = OptimizerChoice.of({"options": {"weight_decay": 0.1}, "groups": [group.document]})
    assert choice.of_parameter(["layers.0.bias"]).all_options["weight_decay"] == 0.0
    assert choice.of_parameter(["layers.0.weight"]).all_options["weight_decay"] == 0.1
    assert choice.of_parameter(["bias"]).groups == ()
