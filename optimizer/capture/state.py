"""What a checkpoint calls a step's parameters and buffers: the names of plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.rewrite import PlaceableGraph


@dataclass(frozen=True)
class StateName:
    """part: `model` (a name of model.state_dict()), `loss` (of loss.state_dict()), or `transient`
    (a buffer that neither has, because its module does not save it)."""

    part: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.part}.{self.name}"


@dataclass(frozen=True)
class StateNames:
    """of: by operator id; several names where parameters are tied, the first is the optimizer's.

    others: what model and loss save and no operator holds: constants of the step, and parameters
    that it does not use. Steps never change them.
    """

    of: Mapping[str, tuple[StateName, ...]]
    others: Mapping[StateName, torch.Tensor]


def state_names(step: TrainingStep, code: PlaceableGraph) -> StateNames:
    parts = {"model": step.model} if step.loss is None else {"model": step.model, "loss": step.loss}
    saved = {
        StateName(part, name): value
        for part, module in parts.items()
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor)
    }

    def named(exported: str) -> StateName:
        """With a loss, the exported module is a pair of both; without, it is the model."""
        part, _, name = (
            exported.partition(".") if step.loss is not None else ("model", "", exported)
        )
        found = StateName(part, name)
        return found if found in saved else StateName("transient", f"{part}.{name}")

    names = {
        identifier: tuple(named(exported) for exported in exported_names)
        for identifier, exported_names in code.names.items()
    }
    held = {name for some in names.values() for name in some}
    others = {name: value for name, value in saved.items() if name not in held}
    return StateNames(of=names, others=others)
