"""Looks, where ranks will run, what they would make of the folder of their job's checkpoints: with
which step the job begins, or why they would refuse the folder.

`python -m placewire.job.contract.checkpoint_look` reads a question from standard input and prints
the answer. It leaves nothing behind: to try whether files can be locked there, it makes one without
a name. What only the model itself tells, ranks still ask. Where the folder does not answer, it says
so on standard error and ends with 1.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from placewire.frozen import Frozen
from placewire.job.contract.checkpoint import (
    PROBE,
    Checkpoint,
    CheckpointError,
    Manifest,
    Resume,
    listed_in,
)
from placewire.job.contract.job_identity import JobIdentity
from placewire.job.contract.look import Answer, Problem, print_answer
from placewire.job.contract.same_job import differences_between

# A folder that a dead server exports answers nobody; one that is mounted at its first use, or read
# from tape, answers late.
_SECONDS = 10.0
# What others wrote into a manifest is told in so many characters: an answer has room for them.
_LONGEST_LIST = 10_000
OTHER_OPTIMIZER = (
    "make job.optimizer as it was for the checkpoint, or give job.checkpoint another folder, in "
    "which the training begins anew"
)
OTHER_TRAINED = (
    "let the model train what it trained then (requires_grad); or give job.checkpoint another "
    "folder, in which the training begins anew, perhaps from weights of a file (job.state)"
)
_CHANGED = (
    "where you changed nothing but what the model computes, as its dropout, "
    "`job.checkpoint.resume: changed` goes on; "
)
_WRITABLE = "give a folder that the ranks' user may write to, on every server"


class CheckpointQuestion(Frozen):
    """What a plan says of the folder of its job's checkpoints, and what is known of the job.
    keeps: options for which its optimizer keeps more of every parameter than without them."""

    folder: str
    resume: Resume
    steps: int
    job: JobIdentity
    keeps: tuple[str, ...] = ()


class CheckpointProblem(Problem):
    """Of the folder of a job's checkpoints, or of one of them."""


class CheckpointAnswer(Answer):
    """begins: with which step the job begins, in a sentence; "" where the folder is refused.
    resumes: whether that is after a checkpoint, unless only the model itself tells otherwise."""

    begins: Annotated[str, Field(max_length=20_000)] = ""
    resumes: bool = False


def answer_to(asked: CheckpointQuestion) -> CheckpointAnswer:
    folder = Path(asked.folder)
    if (problem := _unusable(folder)) is not None:
        return CheckpointAnswer(problem=problem)
    try:
        found = listed_in(folder)
    except OSError as error:
        what = f"job.checkpoint.folder {folder} cannot be read: {error.strerror}"
        return CheckpointAnswer(problem=CheckpointProblem(what=what, remedy=_WRITABLE))
    damaged = [one.why for one in found.unusable if one.is_ours]
    own = [one for one in found.checkpoints if not _differences(asked, one)]
    is_captured = asked.job.structure_hash is not None
    last = _last_of_each_job(own, is_captured=is_captured)
    if (problem := _refusal(asked, found.checkpoints, damaged, last)) is not None:
        return CheckpointAnswer(problem=problem)
    begins = _beginning(folder, last, is_captured=is_captured)
    return CheckpointAnswer(begins=begins, resumes=bool(last))


def folder_above_missing(folder: Path) -> CheckpointProblem:
    """A folder that others are mounted in is there; what is missing above is no place to save."""
    return CheckpointProblem(
        what=f"job.checkpoint.folder {folder} cannot be made: {folder.parent} is not there",
        remedy="correct the path, or mount what is missing; ranks make the folder itself, and none "
        "above it",
    )


def not_lockable(folder: Path, error: OSError) -> CheckpointProblem:
    return CheckpointProblem(
        what=f"job.checkpoint.folder {folder} cannot be locked (flock): {error.strerror}. Ranks "
        "lock it, so that no two jobs save there at once",
        remedy="let its file system have locks (NFS 3 takes rpc.statd on both ends, or mount NFS "
        "4; Lustre takes the mount option flock), or give a folder elsewhere",
    )


def without_checkpoint(folder: Path) -> CheckpointProblem:
    return CheckpointProblem(
        what=f"job.checkpoint.resume is `required`, and {folder} has no checkpoint",
        remedy="give a folder with a checkpoint, or `auto`",
    )


def with_checkpoints(folder: Path, last: Checkpoint) -> CheckpointProblem:
    return CheckpointProblem(
        what=f"job.checkpoint.resume is `never`, and {folder} has checkpoints already, the last "
        f"after {last.manifest.step} steps",
        remedy="give an empty folder, or `auto`",
    )


def nothing_left(last: Checkpoint, steps: int) -> CheckpointProblem:
    return CheckpointProblem(
        what=f"{last.path} is after {last.manifest.step} steps; the plan asks for {steps}, so that "
        "nothing is left to train",
        remedy="raise job.steps, or give another folder",
    )


def of_another_job(last: Checkpoint, job: JobIdentity, resume: Resume) -> CheckpointProblem:
    """last: differs from the job. Where the computation alone differs, the remedy says how the job
    goes on all the same."""
    differences = differences_between(last.manifest, job, resume == "changed")
    of_computation = not differences_between(last.manifest, job, may_compute_otherwise=True)
    return CheckpointProblem(
        what=f"{last.path} is of another job: {'; '.join(differences)[:_LONGEST_LIST]}",
        remedy="give job.checkpoint another folder, or make the plan as it was for the checkpoint; "
        + (_CHANGED if of_computation else "")
        + "docs/job.md says how plain PyTorch loads it",
    )


def incomplete(checkpoint: Checkpoint, missing: Sequence[str]) -> CheckpointProblem:
    return CheckpointProblem(
        what=f"checkpoint {checkpoint.path} lacks {', '.join(missing)[:_LONGEST_LIST]}",
        remedy="every rank wrote a file of its own: put all of them into that folder, or move "
        "the checkpoint away to resume from the previous one",
    )


def _differences(asked: CheckpointQuestion, one: Checkpoint) -> tuple[str, ...]:
    may_compute_otherwise = asked.resume == "changed"
    return differences_between(one.manifest, asked.job, may_compute_otherwise)


def _refusal(
    asked: CheckpointQuestion,
    found: Sequence[Checkpoint],
    damaged: Sequence[CheckpointError],
    last: Sequence[Checkpoint],
) -> CheckpointProblem | None:
    """last: of each job that may be the plan's."""
    if not last and damaged:
        return CheckpointProblem(what=damaged[-1].what, remedy=damaged[-1].remedy)
    if not found:
        return without_checkpoint(Path(asked.folder)) if asked.resume == "required" else None
    if asked.resume == "never":
        return with_checkpoints(Path(asked.folder), (last or found)[-1])
    if not last:
        return of_another_job(found[-1], asked.job, asked.resume)
    if len(last) == 1 and (missing := last[0].missing):
        return incomplete(last[0], missing)
    if len(last) == 1 and (option := _not_kept(last[0].manifest, asked.keeps)):
        return CheckpointProblem(
            what=f"{last[0].path} was saved without {option}, and the plan has it: what the "
            "optimizer keeps of each parameter for it is not there",
            remedy=OTHER_OPTIMIZER,
        )
    # Which of these jobs is the plan's, the model may tell alone.
    if any(one.manifest.step < asked.steps for one in last):
        return None
    known = asked.job.structure_hash is not None
    of_model = [one for one in last if known or one.manifest.model == asked.job.model]
    return nothing_left(of_model[-1], asked.steps) if of_model else _of_another(last[-1], asked)


def _not_kept(saved: Manifest, keeps: Sequence[str]) -> str | None:
    """The first of these options that some parameter was saved without. Where the loss was scaled,
    perhaps no step had updated anything yet, and then there is no state to miss."""
    if saved.scaler is not None:
        return None
    every = (group for some in saved.param_groups.values() for group in some)
    groups = [group for group in every if group.get("params")]
    return next((o for o in keeps if any(not group.get(o, True) for group in groups)), None)


def _of_another(last: Checkpoint, asked: CheckpointQuestion) -> CheckpointProblem:
    """A job goes on under another name of its model; ranks refuse each other job."""
    model, step = last.manifest.model[:200], last.manifest.step
    return CheckpointProblem(
        what=f"{last.path} is of {model} after {step} steps; the plan asks for {asked.steps} of "
        f"{asked.job.model}. Either it is another job's, or the model has "
        "another name now and nothing is left to train",
        remedy="give job.checkpoint another folder; or raise job.steps, if the model is the same",
    )


def _beginning(folder: Path, last: Sequence[Checkpoint], *, is_captured: bool) -> str:
    if len(last) > 1:
        several = "some of several jobs" if is_captured else "some, perhaps of several jobs"
        return (
            f"the job resumes from its own last checkpoint in {folder}, which has {several}, the "
            f"last after {last[-1].manifest.step} steps"
        )
    if last:
        resumes = f"the job resumes after {last[0].manifest.step} steps, from {last[0].path}"
        return resumes if is_captured else f"{resumes}, unless it is of another model"
    state = "has no checkpoint" if folder.exists() else "is not there yet, and is made"
    return f"the job begins at step 0: {folder} {state}"


def _last_of_each_job(found: Sequence[Checkpoint], *, is_captured: bool) -> list[Checkpoint]:
    """found: smallest step first, none of another job as far as is known. is_captured: whether the
    job's step is known; then only tensors are not. Of two that are the same in all that ranks still
    compare, they take both for their job's, or neither."""
    by_job = dict[tuple[object, ...], Checkpoint]()
    for one in found:
        saved = one.manifest
        tensors = tuple(sorted(saved.tensors.items()))
        computation = saved.computation_hash or saved.structure_hash
        cut = saved.accumulate, saved.shards
        trained = saved.model, saved.batch, saved.seed, saved.optimizer
        by_job[(tensors,) if is_captured else (tensors, computation, cut, trained)] = one
    return sorted(by_job.values(), key=lambda one: one.manifest.step)


def _unusable(folder: Path) -> CheckpointProblem | None:
    """Says why nothing can be written to the folder, or why it cannot be made. Where that cannot be
    known, as beneath a mount whose server is gone, it is unusable, too."""
    why: str | None
    try:
        nearest = folder if _is_there(folder) else folder.parent
        if not _is_there(nearest):
            return folder_above_missing(folder)
        why = _not_writable(nearest)
        if why is None:
            return _not_locked(folder, nearest)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
    return CheckpointProblem(
        what=f"job.checkpoint.folder {folder} cannot be written to: {why}", remedy=_WRITABLE
    )


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _not_writable(path: Path) -> str | None:
    """path: is there, if only as a link to nothing."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"{path} is a link to nothing"
    if not stat.S_ISDIR(mode):
        return f"{path} is no folder"
    if os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return None
    return f"{path} may not be written to by this user ({os.geteuid()})"


def _not_locked(folder: Path, nearest: Path) -> CheckpointProblem | None:
    """The lock that ranks take is left alone: a job that is about to begin would not get it. Raises
    OSError where nothing can be written after all."""
    probe = nearest / f"{PROBE}{uuid.uuid4().hex}"
    descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        # At once, since a lock may wait for a server that does not answer.
        probe.unlink(missing_ok=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not_lockable(folder, error)
    finally:
        os.close(descriptor)
    return None


def main() -> None:
    asked = CheckpointQuestion.model_validate_json(sys.stdin.read())
    print_answer(lambda: answer_to(asked), asked.folder, _SECONDS)


if __name__ == "__main__":
    main()
