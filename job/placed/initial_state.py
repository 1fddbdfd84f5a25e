"""Gives parameters and buffers the values of a file, as of a model that was trained before.

Each rank reads what it holds, a shard by its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from placewire.job.contract.specification import StateSpec
from placewire.job.errors import JobError
from placewire.job.placed.initial_state_file import opened_initial_state
from placewire.job.placed.state import RankState
from placewire.job.placed.tensor_file import overwrite
from placewire.job.placed.tensor_header import TensorFileError
from placewire.job.placed.tensor_sources import TensorSource
from placewire.job.placed.told_progress import ToldProgress
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.state import StateName, StateNames

_NAMED = 3


def load_initial_state(
    asked: StateSpec,
    captured: CapturedStep,
    state: RankState,
    progress: ToldProgress | None = None,
) -> str:
    """Overwrites what the rank holds of the model, and the captured step's constants, which every
    rank has. Returns what was done, for the user. Raises JobError where the file cannot be read,
    and where it is of another model."""
    progress, names = progress or ToldProgress(), captured.names
    every = {name for parts in names.of.values() for part in parts for name in part.names}
    inside = f"{asked.module}." if asked.module else ""
    own = {
        name
        for name in (*every, *names.others)
        if name.part == "model" and name.name.startswith(inside)
    }
    if not own:
        raise JobError(
            f"job.state.module {asked.module}: the model has no parameter or buffer in it",
            "give a module's name as in `model.named_modules()`, or leave it out",
        )
    with opened_initial_state(asked) as source:
        found = {name: asked.prefix + name.name.removeprefix(inside) for name in own}
        found = {name: key for name, key in found.items() if key in source.shapes}
        told = _differences(asked, source, names, own, found)
        for value, rows, shape, some in _held(state):
            if (key := next((found[name] for name in some if name in found), None)) is not None:
                _overwrite(value, source, key, rows, shape)
                progress.add(value)
        for constant, name in names.constants.items():
            if name in found:
                value = captured.code.constants[constant]
                _overwrite(value, source, found[name], None, tuple(value.shape))
                progress.add(value)
        for name, value in names.others.items():
            if name in found and name.key in state.others:
                _overwrite(value, source, found[name], None, tuple(value.shape))
                progress.add(value)
    return told


def _held(
    state: RankState,
) -> Iterator[tuple[torch.Tensor, slice | None, tuple[int, ...], Sequence[StateName]]]:
    """What is to be overwritten, which rows it is, the shape of the whole, and its names."""
    for identifier, value in state.held.items():
        for part in state.parts[identifier]:
            rows = None if part.shard is None else slice(part.shard.start, part.shard.end)
            yield part.within(value), rows, part.shape, part.names


def _differences(
    asked: StateSpec,
    source: TensorSource,
    names: StateNames,
    own: set[StateName],
    found: Mapping[StateName, str],
) -> str:
    """Says what is not in both. Raises JobError where the plan asks for all."""
    # A tied parameter has several names; the file needs one of them.
    together = [part.names for parts in names.of.values() for part in parts]
    tied = {name for some in together if any(map(found.__contains__, some)) for name in some}
    missing = sorted(name.name for name in own - tied - found.keys())
    others = sorted(source.shapes.keys() - set(found.values()))
    told = []
    if missing:
        told.append(f"it lacks {_some(missing)}")
    if others:
        told.append(f"it has {_some(others)}, which the model lacks")
    if not found or (told and not asked.partial):
        raise JobError(
            f"job.state.file {asked.file} is of another model: {'; '.join(told)}",
            "give `prefix` where the file's names begin with more than the model's, `module` where "
            "the model's do, `entry` where the file has more than the model's state_dict(), or "
            "`partial: true` to begin with what is in both",
        )
    return f"{len(found)} tensors begin as in {asked.file}" + "".join(f"; {one}" for one in told)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _overwrite(
    value: torch.Tensor, source: TensorSource, key: str, rows: slice | None, shape: tuple[int, ...]
) -> None:
    if source.shapes[key] != shape:
        raise TensorFileError(
            f"{key} has the shape {list(source.shapes[key])} there, and {list(shape)} in the model"
        )
    read = source.read(key, rows)
    if read.dtype != value.dtype and not (read.is_floating_point() and value.is_floating_point()):
        raise TensorFileError(f"{key} is {read.dtype} there, and {value.dtype} in the model")
    overwrite(value, read.reshape(value.shape))
