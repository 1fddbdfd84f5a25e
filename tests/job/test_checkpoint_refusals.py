"""Is the true cause told of a checkpoint that cannot be loaded, and of a folder without locks?"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from placewire.job.contract.checkpoint import MANIFEST, checkpoints_in, tensor_file
from placewire.job.contract.checkpoint_look import answer_to
from placewire.job.contract.specification import OptimizerSpec
from placewire.job.errors import JobError
from placewire.job.placed.checkpoint import _without
from placewire.job.placed.saved_tensors import NotSavedError
from tests.job.test_checkpoint import SAVED_AFTER, Job, job
from tests.job.test_checkpoint_look import asked, told

MOMENTUM = {"momentum": 0.9}


def sgd(**options: float) -> OptimizerSpec:
    return OptimizerSpec(name="sgd", lr=0.1, options=options)


def save(folder: Path, optimizer: OptimizerSpec) -> Job:
    made = job(folder, optimizer=optimizer)
    made.begin()
    made.train(range(SAVED_AFTER))
    made.checkpoints[0].save(SAVED_AFTER)
    made.checkpoints[0].close()
    return made


def refusal(folder: Path, optimizer: OptimizerSpec) -> JobError:
    with pytest.raises(JobError) as refused:
        job(folder, optimizer=optimizer).begin()
    return refused.value


def test_a_momentum_that_was_not_saved_is_told_as_that(tmp_path: Path) -> None:
    save(tmp_path, sgd())
    error = refusal(tmp_path, sgd(**MOMENTUM))
    assert "it has no optimizer.state." in error.what and ".momentum_buffer: " in error.what
    assert "the optimizer that it was saved with, sgd(lr=0.1," in error.what
    assert "make job.optimizer as it was" in error.remedy and "free space" not in error.remedy


def test_a_parameter_that_was_not_trained_is_told_as_that(tmp_path: Path) -> None:
    save(tmp_path, sgd(**MOMENTUM))
    (kept,) = checkpoints_in(tmp_path)
    (group,) = kept.manifest.param_groups["optimizer"]
    # As where the layer was frozen: it is in no group, and has no state.
    frozen = {**group, "params": [one for one in group["params"] if one != "mix.weight"]}
    groups = {"optimizer": (frozen,)}
    assert frozen["params"] and frozen != group
    error = NotSavedError("optimizer.state.mix.weight.momentum_buffer[0:2]")
    unfrozen = _without(
        kept.model_copy(
            update={"manifest": kept.manifest.model_copy(update={"param_groups": groups})}
        ),
        error,
    )
    assert "mix.weight was not trained when it was saved, and is now: it has no" in unfrozen.what
    assert unfrozen.remedy.startswith("let the model train what it trained then")
    assert "job.optimizer" not in unfrozen.remedy
    assert "make job.optimizer as it was" in _without(kept, error).remedy


def test_it_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    made = save(tmp_path, sgd())
    (kept,) = checkpoints_in(tmp_path)
    about: dict[str, Any] = {
        "model": kept.manifest.model, "seed": kept.manifest.seed, "optimizer": "sgd",
    }  # fmt: skip
    question = asked(tmp_path, **about)
    assert answer_to(question).problem is None
    said = told(question.model_copy(update={"keeps": ("momentum",)}))
    assert said.startswith(f"{kept.path} was saved without momentum, and the plan has it")
    other = save(tmp_path / "other", sgd(**MOMENTUM))
    assert made.specs and other.specs
    with_momentum = asked(tmp_path / "other", **about).model_copy(update={"keeps": ("momentum",)})
    assert answer_to(with_momentum).problem is None
    assert job(tmp_path / "other", optimizer=sgd()).begin() == SAVED_AFTER


def test_a_damaged_file_is_not_told_as_a_lack_of_space(tmp_path: Path) -> None:
    save(tmp_path, sgd())
    (kept,) = checkpoints_in(tmp_path)
    file = Path(kept.path, tensor_file(0))
    file.write_bytes(b"\0" * file.stat().st_size)
    error = refusal(tmp_path, sgd())
    assert "is no file of tensors" in error.what and "free space" not in error.remedy
    assert error.remedy.startswith("move that checkpoint away")


def test_a_file_that_cannot_be_read_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, sgd())
    real = os.open

    def opened(path: Any, *more: Any, **options: Any) -> int:
        if str(path).endswith(".safetensors"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *more, **options)

    monkeypatch.setattr(os, "open", opened)
    error = refusal(tmp_path, sgd())
    assert "Permission denied" in error.what
    assert error.remedy.startswith("see that the ranks' user can read job.checkpoint.folder")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_locks_is_told_as_that_and_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, there: bool
) -> None:
    folder = tmp_path / "kept"
    if there:
        folder.mkdir()

    def flock(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    problem = answer_to(asked(folder)).problem
    assert problem is not None
    assert problem.what.startswith(f"job.checkpoint.folder {folder} cannot be locked (flock): ")
    assert os.strerror(number) in problem.what and "rpc.statd" in problem.remedy
    assert [*tmp_path.rglob("*")] == ([folder] if there else [])
    error = refusal(folder, sgd())
    assert (error.what, error.remedy) == (problem.what, problem.remedy)


def test_a_look_does_not_take_the_lock_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = list[str]()
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        locked.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor, how)

    holder = save(tmp_path, sgd())
    assert job(tmp_path, optimizer=sgd()).begin() == SAVED_AFTER
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(fcntl, "flock", flock)
    assert holder.specs and (tmp_path / before[0].name).exists()
    answer = answer_to(asked(tmp_path, model=holder.specs[0].model, seed=3, optimizer="sgd"))
    assert answer.problem is None and answer.resumes
    (name,) = locked
    assert "/seen-" in name and name.endswith(" (deleted)")
    assert sorted(tmp_path.rglob("*")) == before and MANIFEST in {one.name for one in before}
