"""A job begins with the values of a file, whichever program wrote it, and whoever holds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.checkpoint import CheckpointSpec, checkpoints_in
from placewire.job.contract.specification import Noted, Resumed, StateSpec
from placewire.job.errors import JobError
from placewire.job.placed.checkpoint import Checkpoints
from placewire.job.placed.initial_state import load_initial_state
from placewire.job.placed.plain_state import read_checkpoint
from placewire.optimizer.capture import shards
from placewire.optimizer.capture.protocol import TrainingStep, load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.job.ranks import run_ranks
from tests.job.test_checkpoint import (
    ADAMW,
    EAGER,
    HARD,
    SAVED_AFTER,
    STEPS,
    Job,
    captured_step,
    eager,
    job,
    one_thread,  # noqa: F401 - a fixture
    spread,
)
from tests.job.value_files import (
    Values,
    as_distributed,
    as_folder,
    as_link,
    as_safetensors,
    as_state_dict,
)

GPT2, MLP = EAGER
FROZEN = "tests.models.frozen:training_step"
FORMATS: list[Callable[[Any, Path], Path]] = [as_safetensors, as_state_dict, as_distributed]


def others(model: str) -> tuple[TrainingStep, Values]:
    """A step as it is under another seed, and its values."""
    step = load_training_step(model, 4, seed=99)
    return step, {name: value.clone() for name, value in step.model.state_dict().items()}


def load(made: Job, file: Path, **asked: Any) -> list[str]:
    spec = StateSpec(file=str(file), **asked)
    return [
        load_initial_state(spec, own, checkpoints._state)
        for own, checkpoints in zip(made.own, made.checkpoints, strict=True)
    ]


@pytest.mark.parametrize("write", [*FORMATS, as_folder, as_link])
@pytest.mark.parametrize("model", EAGER)
def test_three_ranks_train_as_plain_pytorch_from_there(
    tmp_path: Path, model: str, write: Callable[[Values, Path], Path]
) -> None:
    step, values = others(model)
    made = job(tmp_path / "unused", devices=3, model=model)
    told = load(made, write(values, tmp_path / "values"))
    assert told[0].startswith(f"{len(values)} tensors begin as in ") and len(set(told)) == 1
    ours = made.state(0)
    assert all(torch.equal(ours[f"model.{name}"], value) for name, value in values.items())
    options = made.captured.optimizer.torch_options
    optimizer = torch.optim.AdamW(step.model.parameters(), **dict[str, Any](options), fused=True)
    batches = load_training_step(model, 4, seed=3).batches
    again = TrainingStep(step.model, step.example_inputs, batches, step.loss)
    assert made.train(range(STEPS)) == eager(again, optimizer, range(STEPS))


def test_what_a_job_loads_is_not_in_the_next(tmp_path: Path) -> None:
    """Tests share what they captured: all that is loaded is a job's own, constants too."""
    hard = "tests.models.hard:training_step"
    captured = captured_step(hard, 4, 3, ADAMW)
    constants, unused = captured.code.constants.values(), captured.names.others.values()
    assert constants and unused
    shared = [*captured.values.values(), *constants, *unused]
    before = [value.clone() for value in shared]
    _, values = others(hard)
    values |= {name: value + 1 for name, value in values.items() if value.is_floating_point()}
    load(job(tmp_path / "unused", devices=2), as_safetensors(values, tmp_path / "values"))
    assert all(map(torch.equal, shared, before))


@pytest.mark.parametrize("write", FORMATS)
def test_a_shard_begins_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any, Path], Path]
) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 1 << 12)
    monkeypatch.setattr(shards, "LEAST_SHARD_PART", 0.0)
    _, values = others(MLP)
    made = job(tmp_path / "unused", model=MLP)
    cut = capture(MLP, 4, OptimizerChoice("adamw", 1e-2), 3, 2, shards=2)
    assert cut.code.shards and cut.code.members
    state = made.checkpoints[0]._state
    parts = type(state)(cut.names.of, dict(cut.values), {}, {})
    spec = StateSpec(file=str(write(values, tmp_path / "values")))
    load_initial_state(spec, cut, parts)
    found = dict(parts.to_load(0))
    for name, value in values.items():
        rows = [key for key in found if key.partition("[")[0] == f"model.{name}"]
        rows.sort(key=lambda key: int(key.partition("[")[2].partition(":")[0] or 0))
        assert torch.equal(torch.cat([found[key].reshape(-1) for key in rows]), value.reshape(-1))


def test_floats_of_another_type_are_converted(tmp_path: Path) -> None:
    _, values = others(MLP)
    half = {name: value.bfloat16() for name, value in values.items()}
    made = job(tmp_path / "unused", devices=2, model=MLP)
    load(made, as_safetensors(half, tmp_path / "values"))
    ours = made.state(0)
    assert all(torch.equal(ours[f"model.{name}"], value.float()) for name, value in half.items())


def test_one_name_of_tied_weights_is_enough(tmp_path: Path) -> None:
    made = job(tmp_path / "unused", devices=2)
    _, values = others("tests.models.hard:training_step")
    del values["words.weight"]
    load(made, as_safetensors(values, tmp_path / "values"))
    ours = made.state(0)
    assert torch.equal(ours["model.words.weight"], values["out.weight"])
    # No step uses it, and checkpoints have it.
    assert torch.equal(ours["model.unused.weight"], values["unused.weight"])


def test_a_prefix_is_taken_off_and_a_part_is_taken(tmp_path: Path) -> None:
    made = job(tmp_path / "unused", devices=2, model=MLP)
    before = made.state(0)
    _, values = others(MLP)
    first, *_, last = values
    some = {f"net.{name}": value for name, value in values.items() if name != last}
    file = as_safetensors({**some, "net.extra.weight": torch.ones(3)}, tmp_path / "values")
    for asked in ({}, {"prefix": "net."}, {"partial": True}):
        with pytest.raises(JobError, match="of another model: it lacks "):
            load(made, file, **asked)
    assert all(torch.equal(before[key], value) for key, value in made.state(0).items())
    (told, _) = load(made, file, prefix="net.", partial=True)
    assert told.endswith(f"it lacks {last}; it has net.extra.weight, which the model lacks")
    ours = made.state(0)
    assert torch.equal(ours[f"model.{first}"], values[first])
    assert torch.equal(ours[f"model.{last}"], before[f"model.{last}"])


def test_a_file_may_be_of_one_module(tmp_path: Path) -> None:
    made = job(tmp_path / "unused", devices=2)
    before = made.state(0)
    _, values = others("tests.models.hard:training_step")
    mix = {name[4:]: value for name, value in values.items() if name.startswith("mix.")}
    file = as_safetensors(mix, tmp_path / "values")
    with pytest.raises(JobError, match=r"job\.state\.module mixer: the model has no parameter"):
        load(made, file, module="mixer")
    assert load(made, file, module="mix")[0].startswith("2 tensors begin as in ")
    ours = made.state(0)
    assert torch.equal(ours["model.mix.weight"], values["mix.weight"])
    assert torch.equal(ours["model.words.weight"], before["model.words.weight"])


def _wrong(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    _, values = others(MLP)
    first = next(iter(values))
    made = {
        "shape": as_safetensors({**values, first: torch.ones(2, 3)}, tmp_path / "shape"),
        "type": as_safetensors({**values, first: values[first].int()}, tmp_path / "type"),
        "text": tmp_path / "text.safetensors",
        "empty": tmp_path / "empty", "missing": tmp_path / "missing",
    }  # fmt: skip
    made["text"].write_text("no tensors")
    made["empty"].mkdir()
    words = {
        "shape": r"has the shape \[2, 3\] there", "type": "is torch.int32 there",
        "text": "is no file of tensors",
        "empty": "no file in this folder", "missing": "No such file",
    }  # fmt: skip
    return {name: (made[name], word) for name, word in words.items()}


def test_a_name_that_two_files_have_is_refused(tmp_path: Path) -> None:
    made = job(tmp_path / "unused", model=MLP)
    _, values = others(MLP)
    folder = as_folder(values, tmp_path / "values")
    as_safetensors(values, folder / "all")
    with pytest.raises(JobError, match="and in another file"):
        load(made, folder)


def test_what_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    made = job(tmp_path / "unused", model=MLP)
    for file, words in _wrong(tmp_path).values():
        with pytest.raises(JobError, match=words) as raised:
            load(made, file)
        assert f"job.state.file {file} cannot be loaded" in str(raised.value)


def test_a_resumed_job_has_what_no_step_writes_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffer that is only read, of which every rank has its own, and an unused parameter."""
    _, values = others(HARD)
    values["mask"] = torch.full((12, 12), -3.0).triu(1)
    first = job(tmp_path / "kept")
    assert first.begin() == 0
    load(first, as_safetensors(values, tmp_path / "values"))
    first.train(range(SAVED_AFTER))
    assert first.checkpoints[0].save(SAVED_AFTER) is not None
    first.checkpoints[0].close()

    second = job(tmp_path / "kept", devices=3)
    monkeypatch.setattr(Checkpoints, "make_ready", lambda self: "")
    assert second.begin() == SAVED_AFTER
    for name in ("model.mask", "model.unused.weight"):
        expected = values[name.removeprefix("model.")]
        assert torch.equal(second.state(SAVED_AFTER)[name], expected)
    rest = range(SAVED_AFTER, STEPS)
    assert second.train(rest) == first.train(rest)


def frozen() -> tuple[TrainingStep, Values]:
    """A step with values of its own, of which three buffers are only read."""
    step, values = others(FROZEN)
    for name in ("scale", "norm.running_mean", "norm.running_var"):
        values[name] = torch.rand(8) + 0.5
    step.model.load_state_dict(values)
    assert len(captured_step(FROZEN, 4, 3, ADAMW).names.constants) == 3
    return step, values


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_frozen_averages_outlive_a_resume_on_another_number_of_ranks(
    tmp_path: Path, devices: int
) -> None:
    (step, values), captured = frozen(), captured_step(FROZEN, 4, 3, ADAMW)
    options: dict[str, Any] = {
        "kind": "placed", "model": FROZEN, "batch": 4, "seed": 3, "optimizer": ADAMW,
        "state": StateSpec(file=str(as_safetensors(values, tmp_path / "values"))),
        "checkpoint": CheckpointSpec(folder=str(tmp_path / "kept"), every=2),
    }  # fmt: skip
    first = run_ranks(spread(captured, devices), tmp_path / "first", steps=2, **options)
    second = run_ranks(spread(captured, 3 - devices), tmp_path / "second", steps=4, **options)
    losses = [loss for run in (first, second) for rank in run for loss in rank.losses]
    settings = captured.optimizer.torch_options
    optimizer = torch.optim.AdamW(step.model.parameters(), **dict[str, Any](settings), fused=True)
    assert losses == eager(step, optimizer, range(4))
    saved = read_checkpoint(checkpoints_in(tmp_path / "kept")[-1].path)["model"]
    assert all(torch.equal(saved[name], value) for name, value in step.model.state_dict().items())


@pytest.mark.slow
def test_buffers_that_are_only_read_begin_there_on_every_rank(tmp_path: Path) -> None:
    (step, values), captured = frozen(), captured_step(FROZEN, 4, 3, ADAMW)
    options: dict[str, Any] = {
        "kind": "placed", "model": FROZEN, "batch": 4, "seed": 3, "optimizer": ADAMW,
        "captured_once": True,
        "state": StateSpec(file=str(as_safetensors(values, tmp_path / "values"))),
    }  # fmt: skip
    ranks = run_ranks(spread(captured, 2), tmp_path / "ranks", steps=3, **options)
    settings = captured.optimizer.torch_options
    optimizer = torch.optim.AdamW(step.model.parameters(), **dict[str, Any](settings), fused=True)
    assert [loss for rank in ranks for loss in rank.losses] == eager(step, optimizer, range(3))


@pytest.mark.slow
def test_ranks_begin_there_and_resume_from_checkpoints(tmp_path: Path) -> None:
    step, values = others(MLP)
    captured = captured_step(MLP, 4, 3, ADAMW)
    options: dict[str, Any] = {
        "kind": "placed", "model": MLP, "batch": 4, "seed": 3, "optimizer": ADAMW,
        "captured_once": True,
        "state": StateSpec(file=str(as_safetensors(values, tmp_path / "values"))),
        "checkpoint": CheckpointSpec(folder=str(tmp_path / "kept"), every=2),
    }  # fmt: skip
    first = run_ranks(spread(captured, 2), tmp_path / "first", steps=2, **options)
    notes = [
        note for rank in first for e in rank.events if isinstance(e, Noted) for note in e.notes
    ]
    assert [note for note in notes if "begin as in" in note] == notes and len(notes) == 1
    second = run_ranks(spread(captured, 2), tmp_path / "second", steps=4, **options)
    assert [e.step for rank in second for e in rank.events if isinstance(e, Resumed)] == [2]
    losses = [loss for run in (first, second) for rank in run for loss in rank.losses]
    settings = captured.optimizer.torch_options
    optimizer = torch.optim.AdamW(step.model.parameters(), **dict[str, Any](settings), fused=True)
    batches = load_training_step(MLP, 4, seed=3).batches
    again = TrainingStep(step.model, step.example_inputs, batches, step.loss)
    assert losses == eager(again, optimizer, range(4))
