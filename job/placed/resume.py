"""Decides whether a job begins at step 0 or resumes from the last checkpoint of its folder.

The first rank decides, before any rank connects; the others follow, or report that they cannot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.checkpoint import (
    Checkpoint,
    Manifest,
    Resume,
    checkpoints_in,
)
from placewire.job.contract.specification import RankSpec, Resumed
from placewire.job.errors import JobError
from placewire.job.placed.checkpoint import Checkpoints
from placewire.job.transport.rendezvous import await_key

# A folder that is shared over a network shows a new file late.
_SEEN_WITHIN_SECONDS = 15.0
_KEY = "checkpoint"
_NAMED_DIFFERENCES = 3


@dataclass(frozen=True)
class Beginning:
    """step: the first step that runs. resumed: the event to report, on a resuming first rank."""

    step: int = 0
    resumed: Resumed | None = None


def begin(spec: RankSpec, checkpoints: Checkpoints, store: TCPStore | None) -> Beginning:
    """Loads what this rank holds where the job resumes. Raises JobError where it may not begin, and
    CheckpointError where a checkpoint cannot be read."""
    if spec.rank:
        assert store is not None
        chosen = _follow(spec, checkpoints, store)
    else:
        probe = checkpoints.make_ready()
        chosen = _choose(spec, checkpoints)
        if store is not None:
            step = None if chosen is None else chosen.manifest.step
            store.set(_KEY, json.dumps({"probe": probe, "step": step}))
    if chosen is None:
        return Beginning()
    checkpoints.load(chosen)
    if spec.rank:
        return Beginning(chosen.manifest.step)
    notes = changes(chosen.manifest, checkpoints.job)
    step = chosen.manifest.step
    return Beginning(step, Resumed(rank=0, step=step, path=chosen.path, notes=notes))


def _choose(spec: RankSpec, checkpoints: Checkpoints) -> Checkpoint | None:
    found = checkpoints_in(checkpoints.folder)
    resume: Resume = spec.checkpoint.resume if spec.checkpoint else "never"
    if not found:
        if resume == "required":
            raise JobError(
                f"job.checkpoint.resume is `required`, and {checkpoints.folder} has no checkpoint",
                "give a folder with a checkpoint, or `auto`",
            )
        return None
    last = found[-1]
    if resume == "never":
        raise JobError(
            f"job.checkpoint.resume is `never`, and {checkpoints.folder} has checkpoints already, "
            f"the last after {last.manifest.step} steps",
            "give an empty folder, or `auto`",
        )
    if differences := differences_between(last.manifest, checkpoints.job):
        raise JobError(
            f"{last.path} is of another job: {'; '.join(differences)}",
            "give job.checkpoint another folder, or make the plan as it was for the checkpoint; "
            "docs/job.md says how plain PyTorch loads it",
        )
    if last.manifest.step > spec.steps:
        raise JobError(
            f"{last.path} is after {last.manifest.step} steps; the plan asks for {spec.steps}",
            "raise job.steps, or give another folder",
        )
    return last


def _follow(spec: RankSpec, checkpoints: Checkpoints, store: TCPStore) -> Checkpoint | None:
    said = json.loads(await_key(store, spec, _KEY, "rank 0 had not chosen a checkpoint"))
    deadline = time.monotonic() + _SEEN_WITHIN_SECONDS
    while not (checkpoints.folder / said["probe"]).exists():
        if time.monotonic() > deadline:
            raise JobError(
                f"this server does not see in {checkpoints.folder} what rank 0 wrote there",
                "make job.checkpoint.folder the same folder on every server, for example over NFS",
            )
        time.sleep(0.1)
        if checkpoints.folder.exists():
            list(checkpoints.folder.iterdir())  # makes the client ask the file server again
    if said["step"] is None:
        return None
    for checkpoint in checkpoints_in(checkpoints.folder):
        if checkpoint.manifest.step == said["step"]:
            return checkpoint
    raise JobError(f"there is no checkpoint of step {said['step']} in {checkpoints.folder} here")


def differences_between(saved: Manifest, job: Manifest) -> tuple[str, ...]:
    """Returns why the job cannot go on from the saved one; empty where it can."""
    found = _tensor_differences(saved.tensors, job.tensors)
    for what in ("optimizer", "batch", "seed"):
        before, now = getattr(saved, what), getattr(job, what)
        if before != now:
            found.append(f"{what} was {before} and is {now}")
    if not found and saved.structure_hash != job.structure_hash:
        found.append(
            "the parameters are the same and the computation is not (its structure was "
            f"{saved.structure_hash[:12]} and is {job.structure_hash[:12]})"
        )
    return tuple(found)


def changes(saved: Manifest, job: Manifest) -> tuple[str, ...]:
    """Returns differences that do not hinder resuming, but that the user should know."""
    notes = []
    if saved.devices != job.devices:
        notes.append(f"it was on {', '.join(saved.devices)} and is on {', '.join(job.devices)}")
    if saved.optimizer_settings != job.optimizer_settings:
        notes.append(f"it had {saved.optimizer_settings} and has {job.optimizer_settings}")
    if saved.torch != job.torch:
        notes.append(f"torch was {saved.torch} and is {job.torch}: bits may differ")
    return tuple(notes)


def _tensor_differences(saved: Mapping[str, str], job: Mapping[str, str]) -> list[str]:
    found = [f"it lacks {name}" for name in job if name not in saved]
    found += [f"it has {name}, which the model lacks" for name in saved if name not in job]
    found += [
        f"{name} was {saved[name]} and is {job[name]}"
        for name in saved
        if name in job and saved[name] != job[name]
    ]
    if len(found) > _NAMED_DIFFERENCES:
        more = len(found) - _NAMED_DIFFERENCES
        found = [*found[:_NAMED_DIFFERENCES], f"{more} more such differences"]
    return found
