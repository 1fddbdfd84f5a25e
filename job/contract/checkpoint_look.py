"""Looks, where ranks will run, whether they would refuse the folder of their job's checkpoints.

`python -m placewire.job.contract.checkpoint_look` reads a question from standard input and prints
the reason, or null. It changes nothing. What only the captured model tells, ranks still ask.
Where the folder does not answer, it says so on standard error and ends with 1.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

from pydantic import Field

from placewire.frozen import Frozen
from placewire.job.contract.checkpoint import (
    Checkpoint,
    CheckpointError,
    Manifest,
    Resume,
    listed_in,
)

# A folder that a dead server exports answers nobody; one that is mounted at its first use, or read
# from tape, answers late.
_SECONDS = 10.0
_WRITABLE = "give a folder that the ranks' user may write to, on every server"


class CheckpointQuestion(Frozen):
    """What a plan says of its job and of the folder of its checkpoints."""

    folder: str
    resume: Resume
    steps: int
    model: str
    batch: int
    seed: int
    optimizer: str


class CheckpointProblem(Frozen):
    """The ranks' user says it, and it is shown: a sentence with some paths, and a shorter one."""

    what: Annotated[str, Field(max_length=20_000)]
    remedy: Annotated[str, Field(max_length=1_000)]


def problem_in(asked: CheckpointQuestion) -> CheckpointProblem | None:
    folder = Path(asked.folder)
    if (why := _not_writable(folder)) is not None:
        return CheckpointProblem(
            what=f"job.checkpoint.folder {folder} cannot be written to: {why}", remedy=_WRITABLE
        )
    try:
        found = listed_in(folder)
    except OSError as error:
        return CheckpointProblem(
            what=f"job.checkpoint.folder {folder} cannot be read: {error.strerror}",
            remedy=_WRITABLE,
        )
    damaged = [one.why for one in found.unusable if one.is_ours]
    return _refusal(asked, found.checkpoints, damaged)


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


def _refusal(
    asked: CheckpointQuestion, found: Sequence[Checkpoint], damaged: Sequence[CheckpointError]
) -> CheckpointProblem | None:
    if not found:
        if damaged:
            return CheckpointProblem(what=damaged[-1].what, remedy=damaged[-1].remedy)
        return without_checkpoint(Path(asked.folder)) if asked.resume == "required" else None
    if asked.resume == "never":
        return with_checkpoints(Path(asked.folder), found[-1])
    # Which of these jobs is the plan's, only the model tells. Each that may be has ended already.
    last = [one for one in _last_of_each_job(found) if _may_be(one.manifest, asked)]
    if not last or any(one.manifest.step < asked.steps for one in last):
        return None
    of_model = [one for one in last if one.manifest.model == asked.model]
    return nothing_left(of_model[-1], asked.steps) if of_model else _of_another(last[-1], asked)


def _of_another(last: Checkpoint, asked: CheckpointQuestion) -> CheckpointProblem:
    """A job goes on under another name of its model; ranks refuse each other job."""
    model, step = last.manifest.model[:200], last.manifest.step
    return CheckpointProblem(
        what=f"{last.path} is of {model} after {step} steps; the plan asks for {asked.steps} of "
        f"{asked.model}. Either it is another job's, or the model has "
        "another name now and nothing is left to train",
        remedy="give job.checkpoint another folder; or raise job.steps, if the model is the same",
    )


def _last_of_each_job(found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """found: smallest step first. Of two that are the same in all of this, ranks take both for
    their job's, or neither."""
    by_job = dict[tuple[object, ...], Checkpoint]()
    for one in found:
        saved = one.manifest
        computation = saved.computation_hash or saved.structure_hash
        tensors = tuple(sorted(saved.tensors.items()))
        cut = saved.accumulate, saved.shards
        trained = saved.model, saved.batch, saved.seed, saved.optimizer
        by_job[computation, tensors, cut, trained] = one
    return sorted(by_job.values(), key=lambda one: one.manifest.step)


def _may_be(saved: Manifest, asked: CheckpointQuestion) -> bool:
    own = asked.batch, asked.seed, asked.optimizer
    return (saved.batch, saved.seed, saved.optimizer) == own


def _not_writable(folder: Path) -> str | None:
    """Why nothing can be written to the folder, or why it cannot be made; None where it can."""
    try:
        nearest = _nearest(folder)
        if not stat.S_ISDIR(nearest.stat().st_mode):
            return f"{nearest} is no folder"
    except FileNotFoundError as error:
        return f"{error.filename} is a link to nothing"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        return None
    return f"{nearest} may not be written to by this user ({os.geteuid()})"


def _nearest(folder: Path) -> Path:
    """The folder, or the lowest above it that exists. Raises OSError where that cannot be known,
    as beneath a mount whose server is gone."""
    while True:
        try:
            folder.lstat()
        except (FileNotFoundError, NotADirectoryError):
            folder = folder.parent
        else:
            return folder


def main() -> None:
    asked = CheckpointQuestion.model_validate_json(sys.stdin.read())
    looking = ThreadPoolExecutor(1).submit(problem_in, asked)
    try:
        problem = looking.result(_SECONDS)
    except TimeoutError:
        silent = f"{asked.folder} does not answer within {_SECONDS:g} s"
        print(silent, file=sys.stderr, flush=True)
        os._exit(1)  # Nobody waits for that thread.
    print("null" if problem is None else problem.model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
