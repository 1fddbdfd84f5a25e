"""Maps what a rank keeps from step to step to the names that it has in a checkpoint.

model.NAME            a parameter or buffer, NAME as in model.state_dict()
loss.NAME             the same of the loss, where that is a module with state
transient.NAME        a buffer that steps write and that no state_dict() has
optimizer.state.NAME.exp_avg …, optimizer.param_groups …
                      as torch.distributed.checkpoint.state_dict has them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from placewire.job.contract.checkpoint import Manifest
from placewire.job.contract.specification import RankSpec
from placewire.job.placed.lower import RankProgram
from placewire.optimizer.capture.state import StateName
from placewire.optimizer.capture.step import CapturedStep
from placewire.optimizer.capture.updates import AdamW, Sgd
from placewire.optimizer.placement import Placement

Tree = dict[str, Any]


@dataclass(frozen=True)
class RankState:
    """names, held and updates: by operator id, as in StateNames.of and RankProgram.

    others: on the first rank, what it saves for all because no operator of any rank holds it.
    """

    names: Mapping[str, tuple[StateName, ...]]
    held: Mapping[str, torch.Tensor]
    updates: Mapping[str, AdamW | Sgd]
    others: Tree

    def to_load(self, steps_done: int) -> Tree:
        """Returns the rank's own tensors, to be overwritten in place."""
        tree: Tree = {}
        for identifier, value in self.held.items():
            name = self.names[identifier][0]
            _put(tree, (name.part, name.name), value)
            update = self.updates.get(identifier)
            state = update.state(value, steps_done) if update else {}
            for key, tensor in state.items():
                _put(tree, (_optimizer_of(name), "state", name.name, key), tensor)
        return tree

    def to_save(self, steps_done: int) -> Tree:
        """Returns the same with tied parameters under all their names, as in state_dict()."""
        tree = self.to_load(steps_done)
        for identifier, value in self.held.items():
            for name in self.names[identifier]:
                _put(tree, (name.part, name.name), value)
        return _merged(tree, self.others)


def rank_state(captured: CapturedStep, program: RankProgram, is_first: bool) -> RankState:
    return RankState(
        names=captured.names.of,
        held=program.held,
        updates=program.updates,
        others=_others(captured) if is_first else {},
    )


def job_manifest(spec: RankSpec, placement: Placement, captured: CapturedStep) -> Manifest:
    """Returns the manifest that describes the job, at step 0 and without files."""
    return Manifest(
        step=0,
        structure_hash=captured.operators.structure_hash,
        model=spec.model or "",
        batch=spec.batch,
        seed=spec.seed,
        optimizer=captured.optimizer.name,
        optimizer_settings=captured.optimizer.signature,
        devices=placement.devices_used,
        torch=torch.__version__,
        tensors=_saved_tensors(captured),
        files={},
    )


def _saved_tensors(captured: CapturedStep) -> Mapping[str, str]:
    """Returns type and shape of every tensor of model and loss that a checkpoint has, by name."""
    found = {
        name.key: _described(captured.layouts[identifier].dtype, captured.layouts[identifier].size)
        for identifier, names in captured.names.of.items()
        for name in names
    }
    others = captured.names.others
    return found | {name.key: _described(v.dtype, v.shape) for name, v in others.items()}


def _described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _others(captured: CapturedStep) -> Tree:
    tree: Tree = {}
    for name, value in captured.names.others.items():
        _put(tree, (name.part, name.name), value)
    trained: dict[str, list[str]] = {}
    for identifier in captured.code.writers.values():
        if identifier in captured.code.parameters:
            name = captured.names.of[identifier][0]
            trained.setdefault(_optimizer_of(name), []).append(name.name)
    for part, names in trained.items():
        group = {"params": names, **captured.optimizer.torch_options}
        _put(tree, (part, "param_groups"), [group])
    return tree


def _optimizer_of(name: StateName) -> str:
    """Returns a part of its own for the loss, whose parameters may have names of the model's."""
    return "optimizer" if name.part == "model" else f"{name.part}_optimizer"


def _put(tree: Tree, path: tuple[str, ...], value: object) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = value


def _merged(a: Tree, b: Tree) -> Tree:
    both = {k: _merged(a[k], b[k]) for k in a.keys() & b.keys() if isinstance(a[k], dict)}
    return {**a, **b, **both}
