"""Tells whether a checkpoint is of a job: whether the job can go on from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from placewire.job.contract.checkpoint import Manifest
from placewire.job.contract.job_identity import JobIdentity

_NAMED_DIFFERENCES = 3


def differences_between(
    saved: Manifest, job: JobIdentity, may_compute_otherwise: bool = False
) -> tuple[str, ...]:
    """Returns why the job cannot go on from the saved one; empty where nothing that is known of it
    hinders that. may_compute_otherwise: whether the user says that parameters suffice."""
    found = [] if job.tensors is None else _tensor_differences(saved.tensors, job.tensors)
    for what in ("optimizer", "batch", "seed"):
        before, now = getattr(saved, what), getattr(job, what)
        if before != now and None not in (before, now):
            found.append(f"{what} was {before} and is {now}")
    if job.structure_hash is None or may_compute_otherwise:
        return tuple(found)
    same, alike_cut = same_computation(saved, job), same_cut(saved, job)
    if not found and alike_cut and not same:
        alike = "the computation is not the same"
        if job.tensors is not None:
            alike = "the parameters are the same and the computation is not"
        found.append(f"{alike} ({structures(saved, job)})")
        if saved.accumulate is None:
            found[-1] += (
                ", or the step was cut otherwise, which a former release did not note: then give "
                "job.accumulate and job.shards the numbers that it had"
            )
    if not found and not alike_cut and not same and saved.model != job.model:
        found.append(
            f"model was {saved.model} and is {job.model}; under another name a job goes on only in "
            "the same number of micro-batches and shards, because then the computation is compared"
        )
    return tuple(found)


def same_cut(saved: Manifest, job: JobIdentity) -> bool:
    """Whether the step is cut into the same number of micro-batches and shards: else it has other
    operators. A former release did not note the cut, and made other operators of several
    micro-batches."""
    own = job.accumulate, job.shards
    return (saved.accumulate, saved.shards) == own or (saved.accumulate is None and own == (1, 1))


def structures(saved: Manifest, job: JobIdentity) -> str:
    """Names the two steps. job: whose step is captured."""
    assert job.structure_hash is not None
    return (
        f"the structure of its step was {saved.structure_hash[:12]} and is "
        f"{job.structure_hash[:12]}"
    )


def same_computation(saved: Manifest, job: JobIdentity) -> bool:
    """Whether both compute the same loss, however they update weights; a former release noted only
    the whole step."""
    if saved.structure_hash == job.structure_hash:
        return True
    return bool(saved.computation_hash) and saved.computation_hash == job.computation_hash


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
