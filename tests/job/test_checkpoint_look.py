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
    CheckpointAnswer,
    CheckpointProblem,
    CheckpointQuestion,
    answer_to,
)
from placewire.job.contract.job_identity import JobIdentity
from placewire.job.contract.look import Problem

PROGRAM = [sys.executable, "-m", "placewire.job.contract.checkpoint_look"]
# Root may write anywhere while it has its capabilities; ranks in a lab have none.
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]


def asked(folder: Path, **changes: Any) -> CheckpointQuestion:
    """changes: of the question, and of what is known of the job: as before its step is captured."""
    about: dict[str, Any] = {"resume": "auto", "steps": 10}
    job: dict[str, Any] = {"model": "m:f", "batch": 4, "seed": 0, "optimizer": "adamw"}
    for key, value in changes.items():
        (about if key in about else job)[key] = value
    return CheckpointQuestion(folder=str(folder), **about, job=JobIdentity(**job))


def captured(folder: Path, **changes: Any) -> CheckpointQuestion:
    known = {"structure_hash": "h", "computation_hash": "c", "accumulate": 1, "shards": 1}
    return asked(folder, **{**known, **changes})


def save(folder: Path, step: int, **changes: Any) -> None:
    made = Manifest(
        step=step, structure_hash="h", model="m:f", batch=4, seed=0, optimizer="adamw",
        optimizer_settings="", devices=("s1/0",), torch="2", tensors={}, files={},
    ).model_copy(update=changes)  # fmt: skip
    path = checkpoint_path(folder, "step-", step)
    path.mkdir(parents=True)
    (path / MANIFEST).write_text(made.model_dump_json())


def problem_in(question: CheckpointQuestion) -> Problem | None:
    answer = answer_to(question)
    assert (answer.problem is None) == bool(answer.begins)
    return answer.problem


def told(question: CheckpointQuestion) -> str:
    problem = problem_in(question)
    assert problem is not None
    return problem.what


def begins(question: CheckpointQuestion) -> str:
    assert problem_in(question) is None
    return answer_to(question).begins


def test_a_misspelt_folder_is_told_as_one_that_is_new(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for question in (asked, captured):
        assert begins(question(folder)) == (
            f"the job begins at step 0: {folder} is not there yet, and is made"
        )
        assert (
            begins(question(tmp_path)) == f"the job begins at step 0: {tmp_path} has no checkpoint"
        )
    save(folder, 4)
    save(folder, 9)
    resumes = f"the job resumes after 9 steps, from {folder}/step-00000009"
    assert begins(captured(folder)) == resumes
    assert begins(asked(folder)) == f"{resumes}, unless it is of another model"


def test_a_folder_in_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    """As beneath a mount that is missing, or in a misspelt path."""
    folder = tmp_path / "mount" / "kept"
    problem = problem_in(asked(folder))
    assert problem is not None and f"{folder.parent} is not there" in problem.what
    assert "mount what is missing" in problem.remedy
    folder.parent.mkdir()
    assert begins(asked(folder))


@pytest.mark.parametrize(
    ("saved", "why"),
    [
        ({"batch": 5}, "batch was 5 and is 4"),
        ({"seed": 1}, "seed was 1 and is 0"),
        ({"optimizer": "sgd"}, "optimizer was sgd and is adamw"),
    ],
)
def test_another_job_s_checkpoint_is_refused_by_what_the_plan_says(
    tmp_path: Path, saved: dict[str, Any], why: str
) -> None:
    save(tmp_path, 5, **saved)
    for question in (asked, captured):
        assert told(question(tmp_path)) == (f"{tmp_path}/step-00000005 is of another job: {why}")
        problem = problem_in(question(tmp_path))
        assert problem is not None and "resume: changed" not in problem.remedy, "it would not help"


def test_another_model_s_checkpoint_is_refused_as_soon_as_the_step_is_captured(
    tmp_path: Path,
) -> None:
    cut = {"accumulate": 1, "shards": 1}
    save(tmp_path, 5, structure_hash="other", computation_hash="another", **cut)
    assert begins(asked(tmp_path)), "the plan alone does not say what the model computes"
    assert "the structure of its step was other and is h" in told(captured(tmp_path))
    problem = problem_in(captured(tmp_path))
    assert problem is not None and "`job.checkpoint.resume: changed` goes on; " in problem.remedy
    assert begins(captured(tmp_path, resume="changed")).endswith(f"from {tmp_path}/step-00000005")
    assert begins(captured(tmp_path, accumulate=2)), "in another cut only ranks can compare"
    renamed = told(captured(tmp_path, accumulate=2, model="m:g"))
    assert "model was m:f and is m:g" in renamed
    save(tmp_path, 4, **cut)
    assert begins(captured(tmp_path)).endswith("after 4 steps, from " + f"{tmp_path}/step-00000004")
    save(tmp_path, 6, structure_hash="of another optimizer's options", computation_hash="c", **cut)
    assert "after 6 steps" in begins(captured(tmp_path))


def test_a_checkpoint_that_lacks_a_rank_s_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 5, files={"rank0.safetensors": 3})
    assert told(asked(tmp_path)) == f"checkpoint {tmp_path}/step-00000005 lacks rank0.safetensors"
    (tmp_path / "step-00000005" / "rank0.safetensors").write_text("abc")
    assert begins(asked(tmp_path))


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


def test_another_job_s_checkpoints_beside_this_one_s_say_nothing(tmp_path: Path) -> None:
    save(tmp_path, 90, batch=5)
    save(tmp_path, 80, seed=1)
    assert "batch was 5 and is 4" in told(asked(tmp_path)), "the last one is told"
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


@pytest.mark.parametrize(
    "former",
    [{"structure_hash": "of one micro-batch", "accumulate": 1, "shards": 1}, {}],
    ids=["cut otherwise since", "of a former release"],
)
def test_a_job_s_own_checkpoints_are_of_one_job_once_the_step_is_captured(
    tmp_path: Path, former: dict[str, Any]
) -> None:
    """Ranks would take each of them: what they differ in does not make another job."""
    now = {"computation_hash": "c", "accumulate": 2, "shards": 1}
    save(tmp_path, 100, **former)
    save(tmp_path, 200, files={"rank0.safetensors": 3}, **now)
    own = captured(tmp_path, accumulate=2, steps=300)
    missing = f"checkpoint {tmp_path}/step-00000200 lacks rank0.safetensors"
    assert told(own) == missing
    assert "has some, perhaps of several jobs" in begins(asked(tmp_path, steps=300))
    (tmp_path / "step-00000200" / "rank0.safetensors").write_text("abc")
    assert begins(own) == f"the job resumes after 200 steps, from {tmp_path}/step-00000200"
    none_left = told(captured(tmp_path, accumulate=2, steps=200))
    assert "is after 200 steps; the plan asks for 200" in none_left
    save(tmp_path, 250, tensors={"model.other": "float32[2]"}, **now)
    assert "which has some of several jobs" in begins(own), "only ranks know the tensors"


def test_another_model_s_checkpoint_is_told_as_what_it_may_be(tmp_path: Path) -> None:
    save(tmp_path, 1000, model="m:g")
    problem = problem_in(asked(tmp_path, steps=500))
    assert problem is not None and "is of m:g after 1000 steps" in problem.what
    assert "another job's" in problem.what and "another folder" in problem.remedy
    assert "nothing is left to train" in told(captured(tmp_path, steps=500))
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


@pytest.mark.parametrize("deeper", [".", "new"])
def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, deeper: str) -> None:
    tmp_path.chmod(0o555)
    words = WITHOUT_CAPABILITIES if os.geteuid() == 0 else []
    done = subprocess.run(
        [*words, *PROGRAM], input=asked(tmp_path / deeper).model_dump_json().encode(),
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    problem = CheckpointAnswer.model_validate_json(done.stdout).problem
    assert problem is not None and f"{tmp_path} may not be written to" in problem.what
    assert "ranks' user may write to" in problem.remedy
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [*words, *PROGRAM], input=asked(tmp_path / deeper).model_dump_json().encode(),
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    answer = CheckpointAnswer.model_validate_json(done.stdout)
    assert answer.problem is None and not (tmp_path / "new").exists()


def test_a_folder_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """It is no problem of the plan: what is mounted at its first use may answer later."""
    slow = (
        "import time, placewire.job.contract.checkpoint_look as look; look._SECONDS = 0.1; "
        "look.answer_to = lambda asked: time.sleep(600); look.main()"
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
    save(tmp_path / "other", 5, optimizer="x" * 100_000)
    assert "is of another job: optimizer was xxx" in told(asked(tmp_path / "other"))
    save(tmp_path / "lacks", 5, files={f"rank{k}.safetensors": 1 for k in range(10_000)})
    assert "lacks rank0.safetensors, rank1" in told(asked(tmp_path / "lacks"))
    for what, remedy in (("a" * 100_000, "b"), ("a", "b" * 10_000)):
        with pytest.raises(ValueError, match="at most"):
            CheckpointProblem(what=what, remedy=remedy)
