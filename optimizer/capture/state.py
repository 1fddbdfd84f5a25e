"""Gives a step's parameters and buffers the names that plain PyTorch has for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.rewrite import PlaceableGraph
from placewire.optimizer.capture.shards import Shard

# The part of a gradient scaler's state.
SCALER = "scaler"


@dataclass(frozen=True)
class StateName:
    """part: `model` (name is from model.state_dict()), `loss` (from loss.state_dict()),
    `transient` (a buffer that its module does not save), or `scaler` (from that of torch's
    GradScaler)."""

    part: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.part}.{self.name}"


@dataclass(frozen=True)
class StatePart:
    """What an operator's value is called, or a part of its elements.

    names: several where parameters are tied, of which the optimizer uses the first. shape: of the
    whole weight. shard: the rows that it is, where it is not whole. start: in the value's elements,
    where it is one member of several; else None.
    """

    names: tuple[StateName, ...]
    shape: tuple[int, ...]
    shard: Shard | None = None
    start: int | None = None

    @property
    def suffix(self) -> str:
        """What a checkpoint adds to the names."""
        return self.shard.suffix if self.shard else ""

    def within(self, value: torch.Tensor) -> torch.Tensor:
        """value: the operator's, or something of the optimizer's for it: as many elements, or a
        single one for all of them. Returns a view."""
        if self.start is None or not value.dim():
            return value
        return value[self.start : self.start + math.prod(self.shape)].view(self.shape)


@dataclass(frozen=True)
class StateNames:
    """of: by operator id; several parts for a flat parameter. others: what model and loss save and
    no operator holds, which are constants of the step and parameters that it does not use; steps
    never change them. constants: the names of those constants that the step reads, by constant.
    order: the names that model and loss save, in their order.
    """

    of: Mapping[str, tuple[StatePart, ...]]
    others: Mapping[StateName, torch.Tensor]
    constants: Mapping[str, StateName]
    order: tuple[StateName, ...]


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

    def parts_of(identifier: str) -> Iterator[StatePart]:
        for member in code.members.get(identifier, ()):
            yield StatePart(tuple(map(named, member.names)), member.shape, start=member.start)
        if (name := code.scaler.get(identifier)) is not None:
            yield StatePart((StateName(SCALER, name),), ())
        if exported := code.names[identifier]:
            shape = tuple(values[identifier].shape)
            if (shard := code.shards.get(identifier)) is not None:
                shape = (shard.rows, *shape[1:])
            yield StatePart(tuple(map(named, exported)), shape, shard)

    values = {**code.parameters, **code.buffers}
    found = {identifier: tuple(parts_of(identifier)) for identifier in code.names}
    held = {name for parts in found.values() for part in parts for name in part.names}
    others = {name: value for name, value in saved.items() if name not in held}
    constants = {constant: named(name) for constant, name in code.constant_names.items()}
    return StateNames(of=found, others=others, constants=constants, order=tuple(saved))
