"""Gives a step's parameters and buffers the names that plain PyTorch has for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.rewrite import PlaceableGraph


@dataclass(frozen=True)
class StateName:
    """part: `model` (name is from model.state_dict()), `loss` (from loss.state_dict()), or
    `transient` (a buffer that its module does not save)."""

    part: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.part}.{self.name}"


@dataclass(frozen=True)
class StateNames:
    """of: by operator id; several names where parameters are tied, of which the optimizer uses the
    first. others: what model and loss save and no operator holds, which are constants of the step
    and parameters that it does not use; steps never change them.
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
        """Strips the part's name, which exported names have where the step has a loss."""
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
