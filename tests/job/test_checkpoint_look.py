"""Is a folder of checkpoints refused before the network is shaped, as ranks would refuse it?"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import placewire.job.contract.checkpoint_look as module
from placewire.job.contract.checkpoint import MANIFEST, Manifest, checkpoint_path
from placewire.job.contract.checkpoint_look import (
    CheckpointProblem,
    CheckpointQuestion,
    problem_in,
)

PROGRAM = [sys.executable, "-m", "placewire.job.contract.checkpoint_look"]
# Root may write anywhere while it has its capabilities; ranks in a lab have none.
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]


def asked(folder: Path, **changes: Any) -> CheckpointQuestion:
    known: dict[str, Any] = {
        "resume": "auto", "steps": 10, "model": "m:f", "batch": 4, "seed": 0, "optimizer": "adamw",
    }  # fmt: skip
    return CheckpointQuestion(folder=str(folder), **{**known, **changes})


def save(folder: Path, step: int, **changes: Any) -> None:
    made = Manifest(
        step=step, structure_hash="h", model="m:f", batch=4, seed=0, optimizer="adamw",
        optimizer_settings="", devices=("s1/0",), torch="2", tensors={}, files={},
    ).model_copy(update=changes)  # fmt: skip
    path = checkpoint_path(folder, "step-", step)
    path.mkdir(parents=True)
    (path / MANIFEST).write_text(made.model_dump_json())


def told(question: CheckpointQuestion) -> str:
    problem = problem_in(question)
    assert problem is not None
    return problem.what


def test_a_job_with_steps_left_is_not_refused(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    assert problem_in(asked(folder)) is None and not folder.exists()
    save(folder, 4)
    save(folder, 9)
    assert problem_in(asked(folder)) is None


@pytest.mark.parametrize("steps", [9, 8])
def test_a_job_without_steps_left_is_refused(tmp_path: Path, steps: int) -> None:
    save(tmp_path, 4)
    save(tmp_path, 9)
    assert f"is after 9 steps; the plan asks for {steps}" in told(asked(tmp_path, steps=steps))


def test_another_job_s_checkpoint_says_nothing_of_this_one(tmp_path: Path) -> None:
    save(tmp_path, 90, batch=5)
    save(tmp_path, 80, seed=1)
    assert problem_in(asked(tmp_path)) is None, "ranks say what differs"
    save(tmp_path, 70, tensors={"model.other": "float32[2]"})
    save(tmp_path, 8)
    assert problem_in(asked(tmp_path)) is None, "which of the two is the plan's, ranks find out"
    assert "is after 70 steps" in told(asked(tmp_path, steps=8))


@pytest.mark.parametrize(
    "other", [{"optimizer": "sgd"}, {"model": "m:g"}, {"accumulate": 4}, {"shards": 2}]
)
def test_checkpoints_that_differ_in_one_thing_are_not_taken_for_one_job_s(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """Ranks may take the earlier for the job's own, and leave the later alone."""
    save(tmp_path, 300)
    save(tmp_path, 1000, **other)
    assert problem_in(asked(tmp_path, steps=500)) is None


def test_another_optimizer_s_checkpoint_alone_says_nothing_of_this_job(tmp_path: Path) -> None:
    save(tmp_path, 1000, optimizer="sgd")
    assert problem_in(asked(tmp_path, steps=500)) is None, "ranks say what differs"
    assert "nothing is left" in told(asked(tmp_path, steps=500, optimizer="sgd"))


def test_another_model_s_checkpoint_is_told_as_what_it_may_be(tmp_path: Path) -> None:
    save(tmp_path, 1000, model="m:g")
    problem = problem_in(asked(tmp_path, steps=500))
    assert problem is not None and "is of m:g after 1000 steps" in problem.what
    assert "another job's" in problem.what and "another folder" in problem.remedy
    save(tmp_path, 900)
    assert told(asked(tmp_path, steps=500)).startswith(f"{tmp_path}/step-00000900 is after 900")


def test_resume_is_asked_for_or_forbidden(tmp_path: Path) -> None:
    assert "`required`" in told(asked(tmp_path, resume="required"))
    save(tmp_path, 4)
    assert problem_in(asked(tmp_path, resume="required")) is None
    assert "`never`" in told(asked(tmp_path, resume="never"))


def test_a_damaged_checkpoint_alone_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 4)
    (tmp_path / "step-00000004" / MANIFEST).write_text("{")
    assert "cannot be read as a checkpoint" in told(asked(tmp_path))
    save(tmp_path, 5)
    assert problem_in(asked(tmp_path)) is None


def test_a_file_in_the_folder_s_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    for folder in (tmp_path / "kept", tmp_path / "kept/deeper"):
        assert f"{tmp_path / 'kept'} is no folder" in told(asked(folder))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert f"{tmp_path / 'link'} is a link to nothing" in told(asked(tmp_path / "link"))


def test_a_folder_that_cannot_be_reached_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount whose server is gone: what is above it says nothing of it."""
    stale = tmp_path / "mounted"

    def lstat(self: Path) -> os.stat_result:
        if self == stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self))
        return os.lstat(self)

    monkeypatch.setattr(Path, "lstat", lstat)
    monkeypatch.setattr(os.path, "lexists", lambda path: Path(path) not in (stale, stale / "kept"))
    assert f"{stale}: Stale file handle" in told(asked(stale))


@pytest.mark.parametrize("deeper", [".", "new/deeper"])
def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, deeper: str) -> None:
    tmp_path.chmod(0o555)
    words = WITHOUT_CAPABILITIES if os.geteuid() == 0 else []
    done = subprocess.run(
        [*words, *PROGRAM], input=asked(tmp_path / deeper).model_dump_json().encode(),
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    problem = CheckpointProblem.model_validate_json(done.stdout)
    assert f"{tmp_path} may not be written to" in problem.what
    assert "ranks' user may write to" in problem.remedy
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [*words, *PROGRAM], input=asked(tmp_path / deeper).model_dump_json().encode(),
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    assert done.stdout == b"null\n" and not (tmp_path / "new").exists()


def test_a_folder_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """It is no problem of the plan: what is mounted at its first use may answer later."""
    slow = (
        "import time, placewire.job.contract.checkpoint_look as look; look._SECONDS = 0.1; "
        "look.problem_in = lambda asked: time.sleep(600); look.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", slow], input=asked(tmp_path).model_dump_json().encode(),
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr == f"{tmp_path} does not answer within 0.1 s\n".encode()
    assert module._SECONDS > 1


def test_an_answer_is_a_sentence(tmp_path: Path) -> None:
    """The ranks' user gives it, and the controller shows it."""
    for what, remedy in (("a" * 100_000, "b"), ("a", "b" * 10_000)):
        with pytest.raises(ValueError, match="at most"):
            CheckpointProblem(what=what, remedy=remedy)
