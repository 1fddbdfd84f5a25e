"""The `job.optimizer` section of plan.yaml as frozen types: what updates the parameters.

docs/reference/plan-yaml.md is made from the class docstrings and the descriptions of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from placewire.controller.plan.values import (
    Backoff,
    Count,
    Fraction,
    Growth,
    LearningRate,
    Momentum,
    Norm,
    OptimizerName,
    OptionValue,
    Scale,
    Warmup,
    WeightDecay,
)
from placewire.frozen import Frozen
from placewire.optimizer.capture.optimizer_options import Option
from placewire.optimizer.cluster_plan.values import Text

Options = Mapping[Text, OptionValue]


class PlanSchedule(Frozen):
    """How the learning rate changes with the step. Each schedule takes only some of these keys."""

    name: Literal["constant", "linear", "cosine", "step"] = Field(
        "constant", description="the schedule that the learning rate follows after its warm-up"
    )
    warmup_steps: Warmup = Field(
        0, description="the number of first steps over which the learning rate rises to `lr`"
    )
    total_steps: Count | None = Field(
        None,
        description="`linear` and `cosine` only: the step at which the learning rate has fallen to "
        "`final`, counted with the warm-up; none: the job's `steps`",
    )
    final: Fraction | None = Field(
        None,
        description="`linear`, `cosine` only: the last learning rate, as a part of `lr`; none: 0%",
    )
    every_steps: Count | None = Field(
        None, description="`step` only, and required there: the steps from one fall to the next"
    )
    decay: Fraction | None = Field(
        None,
        description="`step` only: what each fall leaves of the learning rate before it; none: 10%",
    )


class PlanParameterGroup(Frozen):
    match: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        description="patterns of parameters' names, or of their ends after a dot, such as `bias` "
        "or `norm*.weight`; a parameter belongs to the first group that has it"
    )
    lr: LearningRate | None = Field(None, description="the learning rate; none: that of the others")
    weight_decay: WeightDecay | None = Field(
        None, description="the weight decay; none: that of the others"
    )
    options: Options = Field(
        default_factory=dict, description="other options than those of the other parameters"
    )

    @property
    def all_options(self) -> Mapping[str, Option]:
        own = {} if self.weight_decay is None else {"weight_decay": self.weight_decay}
        return {**self.options, **own}

    @property
    def document(self) -> dict[str, Any]:
        return {"match": list(self.match), "lr": self.lr, "options": dict(self.all_options)}


class PlanScaler(Frozen):
    """Scales the loss as torch.amp.GradScaler does, whose settings and defaults these are."""

    init_scale: Scale = Field(65536.0, description="what the loss is multiplied by at first")
    growth_factor: Growth = Field(
        2.0,
        description="what it is multiplied by after `growth_interval` steps in a row with finite "
        "gradients",
    )
    backoff_factor: Backoff = Field(
        0.5,
        description="what it is multiplied by after a step with a gradient that is not finite",
    )
    growth_interval: Count = Field(
        2000, description="after how many steps in a row with finite gradients the scale grows"
    )


class PlanOptimizer(Frozen):
    name: OptimizerName = Field(
        "adamw",
        description="torch's AdamW, Adam or SGD, or any class that is made like those of "
        "torch.optim, as `module:Class`; the module is looked for in `workdir`, then, without "
        "`launch`, beside the plan",
    )
    lr: LearningRate = Field(1e-3, description="the learning rate")
    momentum: Momentum | None = Field(
        None, description="the momentum, where the optimizer has one; none: its default"
    )
    weight_decay: WeightDecay | None = Field(
        None, description="the weight decay; none: the optimizer's default"
    )
    options: Options = Field(
        default_factory=dict,
        description="the optimizer's other options by their names in torch, such as `betas`",
    )
    clip_norm: Norm | None = Field(
        None,
        description="the largest norm of all gradients taken together; larger gradients are scaled "
        "down to it, as `clip_grad_norm_` does; none: no limit",
    )
    scaler: PlanScaler | None = Field(
        None,
        description="multiplies the loss by a scale, and leaves out the update of a step with a "
        "gradient that is not finite, as `torch.amp.GradScaler` does; `{}`: with its defaults; "
        "none: no scale",
    )
    schedule: PlanSchedule = Field(
        PlanSchedule(), description="how the learning rate changes with the step"
    )
    groups: tuple[PlanParameterGroup, ...] = Field(
        (), description="parameters with settings of their own, as in torch's `param_groups`"
    )

    @property
    def all_options(self) -> Mapping[str, Option]:
        own = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {**self.options, **{k: value for k, value in own.items() if value is not None}}
