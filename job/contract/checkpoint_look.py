"""Looks, where ranks will run, whether they would refuse the folder of their job's checkpoints.

`python -m placewire.job.contract.checkpoint_look` reads a question from standard input and prints
the reason, or null. It changes nothing. What only the captured model tells, ranks still ask.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from placewire.frozen import Frozen
from placewire.job.contract.checkpoint import (
    Checkpoint,
    CheckpointError,
    Manifest,
    Resume,
    listed_in,
)

# A folder that a dead server exports answers nobody.
_SECONDS = 10.0
_WRITABLE = "give a folder that the ranks' user may write to, on every server"


class CheckpointQuestion(Frozen):
    """What a plan says of its job and of the folder of its checkpoints."""

    folder: str
    resume: Resume
    steps: int
    batch: int
    seed: int


class CheckpointProblem(Frozen):
    what: str
    remedy: str


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
    # Which of these jobs is the plan's, only the model tells. Each that is has ended already.
    last = [one for one in _last_of_each_job(found) if _may_be(one.manifest, asked)]
    if last and all(one.manifest.step >= asked.steps for one in last):
        return nothing_left(last[-1], asked.steps)
    return None


def _last_of_each_job(found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """found: smallest step first."""
    by_job = dict[tuple[object, ...], Checkpoint]()
    for one in found:
        saved = one.manifest
        computation = saved.computation_hash or saved.structure_hash
        tensors = tuple(sorted(saved.tensors.items()))
        by_job[computation, tensors, saved.batch, saved.seed] = one
    return sorted(by_job.values(), key=lambda one: one.manifest.step)


def _may_be(saved: Manifest, asked: CheckpointQuestion) -> bool:
    return (saved.batch, saved.seed) == (asked.batch, asked.seed)


def _not_writable(folder: Path) -> str | None:
    """Why nothing can be written to the folder, or why it cannot be made; None where it can."""
    nearest = folder
    try:
        while not os.path.lexists(nearest):
            nearest = nearest.parent
        if not nearest.is_dir():
            return f"{nearest} is no folder"
    except OSError as error:
        return error.strerror
    if os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        return None
    return f"{nearest} may not be written to by this user ({os.geteuid()})"


def main() -> None:
    asked = CheckpointQuestion.model_validate_json(sys.stdin.read())
    told: list[CheckpointProblem | None] = []
    looking = threading.Thread(target=lambda: told.append(problem_in(asked)), daemon=True)
    looking.start()
    looking.join(_SECONDS)
    silent = CheckpointProblem(
        what=f"job.checkpoint.folder {asked.folder} does not answer within {_SECONDS:g} s",
        remedy="look at the server that it is mounted from",
    )
    problem = told[0] if told else silent
    print("null" if problem is None else problem.model_dump_json(), flush=True)
    if not told:
        os._exit(0)  # Nobody waits for that thread.


if __name__ == "__main__":
    main()
