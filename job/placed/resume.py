"""Decides whether a job begins at step 0 or resumes from the last checkpoint of its folder.

The first rank decides, before any rank connects; the others follow, or report that they cannot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.checkpoint import (
    Checkpoint,
    Listing,
    Manifest,
    Resume,
    checkpoint_at,
    is_probe_name,
    is_whole_name,
    listed_in,
)
from placewire.job.contract.checkpoint_look import (
    CheckpointProblem,
    nothing_left,
    of_another_job,
    with_checkpoints,
    without_checkpoint,
)
from placewire.job.contract.same_job import (
    differences_between,
    same_computation,
    same_cut,
    structures,
)
from placewire.job.contract.specification import RankSpec, Resumed
from placewire.job.errors import JobError
from placewire.job.placed.checkpoint import Checkpoints
from placewire.job.placed.told_progress import ToldProgress
from placewire.job.transport.rendezvous import await_key

# A folder that is shared over a network shows a new file late.
_SEEN_WITHIN_SECONDS = 15.0
_KEY = "checkpoint"
_NAMED_FOLDERS = 3


@dataclass(frozen=True)
class Beginning:
    """step: the first step that runs. last_finite_step: the last one before it whose loss was
    finite; -1: none. resumed: the event to report, on a resuming first rank."""

    step: int = 0
    last_finite_step: int = -1
    resumed: Resumed | None = None


def begin(
    spec: RankSpec,
    checkpoints: Checkpoints,
    store: TCPStore | None,
    progress: ToldProgress | None = None,
) -> Beginning:
    """Loads what this rank holds where the job resumes. progress: of the loading. Raises JobError
    where it may not begin, and CheckpointError where a checkpoint cannot be read."""
    if spec.rank:
        assert store is not None
        chosen = _follow(spec, checkpoints, store)
    else:
        probe = checkpoints.make_ready()
        chosen = _choose(spec, checkpoints)
        if store is not None:
            name = None if chosen is None else Path(chosen.path).name
            store.set(_KEY, json.dumps({"probe": probe, "name": name}))
    if chosen is None:
        return Beginning()
    checkpoints.load(chosen, progress)
    saved = chosen.manifest
    diverged_from = saved.diverged_from
    last_finite_step = (saved.step if diverged_from is None else diverged_from) - 1
    if spec.rank:
        return Beginning(saved.step, last_finite_step)
    notes = changes(saved, checkpoints.job)
    resumed = Resumed(rank=0, step=saved.step, path=chosen.path, notes=notes)
    return Beginning(saved.step, last_finite_step, resumed)


def _choose(spec: RankSpec, checkpoints: Checkpoints) -> Checkpoint | None:
    """Only this job's own checkpoints are taken. What has not our manifest is somebody else's: it
    is told of and left, as is another job's checkpoint beside our own. Without one of our own, that
    refuses the job, since a mistake in the plan would else begin the training anew."""
    found = listed_in(checkpoints.folder)
    resume: Resume = spec.checkpoint.resume if spec.checkpoint else "never"
    differing = {
        c.path: differences_between(c.manifest, checkpoints.job, resume == "changed")
        for c in found.checkpoints
    }
    own = [one for one in found.checkpoints if not differing[one.path]]
    ours = [one for one in found.unusable if one.is_ours]
    if ours and not own:
        raise ours[-1].why
    checkpoints.notes += _left_alone(found, differing, ours=bool(own))
    if not found.checkpoints:
        if resume == "required":
            raise _refused(without_checkpoint(checkpoints.folder))
        return None
    last = own[-1] if own else found.checkpoints[-1]
    if resume == "never":
        raise _refused(with_checkpoints(checkpoints.folder, last))
    if differing[last.path]:
        raise _refused(of_another_job(last, checkpoints.job, resume))
    if last.manifest.step >= spec.steps:
        raise _refused(nothing_left(last, spec.steps))
    return last


def _refused(problem: CheckpointProblem) -> JobError:
    return JobError(problem.what, problem.remedy)


def _follow(spec: RankSpec, checkpoints: Checkpoints, store: TCPStore) -> Checkpoint | None:
    probe, name = chosen_names(await_key(store, spec, _KEY, "rank 0 had not chosen a checkpoint"))
    deadline = time.monotonic() + _SEEN_WITHIN_SECONDS
    while not (checkpoints.folder / probe).exists():
        if time.monotonic() > deadline:
            raise JobError(
                f"this server does not see in {checkpoints.folder} what rank 0 wrote there",
                "make job.checkpoint.folder the same folder on every server, for example over NFS",
            )
        time.sleep(0.1)
        if checkpoints.folder.exists():
            list(checkpoints.folder.iterdir())  # makes the client ask the file server again
    return None if name is None else checkpoint_at(checkpoints.folder / name)


def chosen_names(said: str | bytes) -> tuple[str, str | None]:
    """Returns the names of rank 0's probe and of the checkpoint, if there is one, both in the job's
    folder. Raises JobError where it says others: whoever reaches the store can write to it."""
    try:
        told = json.loads(said)
    except (ValueError, RecursionError):
        told = None
    probe: Any = told.get("probe") if isinstance(told, dict) else None
    name: Any = told.get("name") if isinstance(told, dict) else None
    if not is_probe_name(probe) or not (name is None or is_whole_name(name)):
        raise JobError(
            f"what was chosen as the job's checkpoint is no name of a checkpoint: {said[:200]!r}",
            "look for who else reaches the job's master address and TCP port",
        )
    return probe, name


def _left_alone(
    found: Listing, differing: Mapping[str, tuple[str, ...]], *, ours: bool
) -> list[str]:
    """Names the folders that are not touched. ours: whether those with our manifest are told, too;
    else they refuse the job."""
    left = [
        f"{one.path} is left as it is: {one.why.what}"
        for one in found.unusable
        if ours or not one.is_ours
    ]
    if ours:
        left += [
            f"{path} is left as it is: it is of another job ({'; '.join(why)})"
            for path, why in differing.items()
            if why
        ]
    if len(left) > _NAMED_FOLDERS:
        more = len(left) - _NAMED_FOLDERS
        left = [*left[:_NAMED_FOLDERS], f"so are {more} more folders with checkpoints' names"]
    return left


def changes(saved: Manifest, job: Manifest) -> tuple[str, ...]:
    """Returns what does not hinder resuming, but the user should know."""
    notes = []
    if (first := saved.diverged_from) is not None:
        notes.append(
            f"no loss from step {first} to step {saved.step - 1} was finite: to go on from before, "
            f"end the job, and move its checkpoints after {first} and more steps away"
        )
    if saved.devices != job.devices:
        notes.append(f"it was on {', '.join(saved.devices)} and is on {', '.join(job.devices)}")
    if saved.accumulate not in (None, job.accumulate):
        notes.append(
            f"it had job.accumulate {saved.accumulate} and has {job.accumulate}: sums round "
            "otherwise, and dropout draws other masks"
        )
    if saved.shards not in (None, job.shards):
        notes.append(f"it had job.shards {saved.shards} and has {job.shards}")
    if not same_computation(saved, job):
        notes.append(
            f"its computation was another one ({structures(saved, job)})"
            if same_cut(saved, job)
            else "whether the computation is otherwise the same cannot be compared"
        )
    if saved.optimizer_settings != job.optimizer_settings:
        notes.append(f"it had {saved.optimizer_settings} and has {job.optimizer_settings}")
    if saved.torch != job.torch:
        notes.append(f"torch was {saved.torch} and is {job.torch}: bits may differ")
    return tuple(notes)
