"""Maps what a rank keeps from step to step to the names that it has in a checkpoint.

model.NAME            a parameter or buffer, NAME as in model.state_dict()
loss.NAME             the same of the loss, where that is a module with state
transient.NAME        a buffer that steps write and that no state_dict() has
optimizer.state.NAME.exp_avg …
                      as torch.distributed.checkpoint.state_dict has them
scaler.scale, scaler._growth_tracker
                      as torch.amp.GradScaler.state_dict() has them, where the loss is scaled
…[0:256]              rows 0 to 255 of one of these, by the rank that has that shard

The entries of param_groups and the settings of the scaler stand in the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from placewire.job.contract.checkpoint import Manifest
from placewire.job.contract.specification import RankSpec
from placewire.job.placed.lower import RankProgram
from placewire.job.placed.tensor_file import described
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.state import SCALER, StateName, StatePart
from placewire.optimizer.capture.updates import Update
from placewire.optimizer.graph.halves import forward_hash
from placewire.optimizer.placement import Placement

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class RankState:
    """parts, held and updates: by operator id, as in StateNames.of and RankProgram.

    others: on the first rank, what it saves for all because no operator of any rank holds it.
    constants: which of these every rank keeps for itself, because its operators read them.
    """

    parts: Mapping[str, tuple[StatePart, ...]]
    held: Mapping[str, torch.Tensor]
    updates: Mapping[str, Update]
    others: Tensors
    constants: Tensors = field(default_factory=dict)

    def to_load(
        self, steps_done: int, with_scaler: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The rank's own tensors, to be overwritten in place. Several replicas of a weight have the
        same name, and so have a constant and what the first rank saves of it. steps_done: 0 where
        no step has updated anything. with_scaler: whether the state of the loss's scaler is among
        them."""
        for name, tensor in self._own(lambda update: steps_done):
            if with_scaler or not name.startswith(f"{SCALER}."):
                yield name, tensor
        yield from self.constants.items()
        yield from self.others.items()

    def _own(self, steps_of: Callable[[Update], int]) -> Iterator[tuple[str, torch.Tensor]]:
        """steps_of: after how many steps the optimizer's state is meant."""
        for identifier, value in self.held.items():
            update = self.updates.get(identifier)
            state = update.state(value, steps_of(update)) if update else {}
            for part in self.parts[identifier]:
                name, suffix = part.names[0], part.suffix
                yield f"{name.key}{suffix}", part.within(value)
                for key, tensor in state.items():
                    whole = f"{_optimizer_of(name)}.state.{name.name}.{key}{suffix}"
                    yield whole, part.within(tensor)

    def to_save(self, steps_done: int) -> Tensors:
        """Returns these with tied parameters under all their names, as in state_dict()."""
        tied = {
            f"{name.key}{part.suffix}": part.within(value)
            for identifier, value in self.held.items()
            for part in self.parts[identifier]
            for name in part.names
        }
        own = self._own(lambda update: steps_done if update.has_updated else 0)
        return {**dict(own), **tied, **self.others}


def rank_state(captured: CapturedStep, program: RankProgram, is_first: bool) -> RankState:
    names, constants = captured.names, captured.code.constants
    return RankState(
        parts=names.of,
        held=program.held,
        updates=program.updates,
        others={n.key: v for n, v in names.others.items()} if is_first else {},
        # What no state_dict() has is in no checkpoint, and stays as the model's function made it.
        constants={n.key: constants[c] for c, n in names.constants.items() if n in names.others},
    )


def job_manifest(spec: RankSpec, placement: Placement, captured: CapturedStep) -> Manifest:
    """Returns the manifest that describes the job, at step 0 and without files."""
    return Manifest(
        step=0,
        structure_hash=captured.operators.structure_hash,
        computation_hash=forward_hash(captured.operators),
        model=spec.model or "",
        batch=spec.batch,
        accumulate=spec.accumulate,
        shards=spec.shards,
        seed=spec.seed,
        optimizer=captured.optimizer.name,
        optimizer_settings=captured.optimizer.signature,
        devices=placement.devices_used,
        torch=torch.__version__,
        tensors=_saved_tensors(captured),
        files={},
        param_groups=_param_groups(captured),
        scaler=None if (scaler := captured.optimizer.scaler) is None else scaler.settings,
    )


def _saved_tensors(captured: CapturedStep) -> Mapping[str, str]:
    """Returns type and shape of every tensor of model and loss that a checkpoint has, by name."""
    found: dict[str, str] = {}
    for identifier, parts in captured.names.of.items():
        dtype = captured.layouts[identifier].dtype
        found |= {
            name.key: described(dtype, part.shape)
            for part in parts
            for name in part.names
            if name.part != SCALER
        }
    others = captured.names.others
    return found | {name.key: described(v.dtype, v.shape) for name, v in others.items()}


def _param_groups(captured: CapturedStep) -> Mapping[str, tuple[Mapping[str, Any], ...]]:
    """Each weight once, in the model's order, as optimizers of PyTorch have them."""
    trained = {
        part.names[0]: captured.code.choice_of(captured.optimizer, identifier).torch_options
        for identifier in captured.code.writers.values()
        if identifier in captured.code.parameters
        for part in captured.names.of[identifier]
    }
    place = {name: k for k, name in enumerate(captured.names.order)}
    groups: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(trained, key=lambda name: place.get(name, len(place))):
        some = groups.setdefault(_optimizer_of(name), [])
        options = dict(trained[name])
        own = next((one for one in some if {**one, **options} == one), None)
        if own is None:
            some.append(own := {"params": [], **options})
        own["params"].append(name.name)
    return {optimizer: tuple(some) for optimizer, some in groups.items()}


def _optimizer_of(name: StateName) -> str:
    """Returns a part of its own for the loss, whose parameters may have names of the model's."""
    return "optimizer" if name.part == "model" else f"{name.part}_optimizer"
