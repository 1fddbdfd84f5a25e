"""Finds the last checkpoint of a job, as far as this machine and the manifests can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from placewire.controller.abandonable import abandonable
from placewire.controller.plan.job import PlacedJob
from placewire.job.contract.checkpoint import Checkpoint, Manifest, listed_in

# A folder that a dead server exports answers nobody.
_LIST_SECONDS = 10.0


async def last_checkpoint(
    job: PlacedJob, folder: Path, tell: Callable[[str], None]
) -> Checkpoint | None:
    """Other jobs' checkpoints may stand beside the job's. Returns None, too, where this machine
    does not share the folder with the servers. tell: gets a line for what cannot be read."""
    try:
        async with asyncio.timeout(_LIST_SECONDS):
            listed = await abandonable(partial(listed_in, folder))
    except TimeoutError:
        tell(
            f"checkpoints: {folder} does not answer within {_LIST_SECONDS:g} s; look at the "
            "server that it is mounted from"
        )
        return None
    except OSError as error:
        tell(f"checkpoints: {error}")
        return None
    for one in listed.unusable:
        if one.is_ours:
            tell(f"checkpoints: {one.why}")
    own = [one for one in listed.checkpoints if _may_be_of(one.manifest, job)]
    return own[-1] if own else None


def _may_be_of(saved: Manifest, job: PlacedJob) -> bool:
    """By what the plan says of a job. Ranks ask for more before they go on from a checkpoint: they
    know the model's tensors, too."""
    said = (saved.model, saved.batch, saved.seed, saved.optimizer)
    return said == (job.model, job.batch, job.seed, job.optimizer.name)
