"""Asks the measuring program for the profile of a device type, and reads its answer."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.controller.errors import OutOfMemory, PlacewireError, PlanError
from placewire.controller.launch.programs import Ended
from placewire.controller.plan.job import PlacedJob

_MODEL_IS_WRONG = 3
# How torch, Python and the C library say that there is no memory left, on a GPU and on a processor.
_NO_MEMORY = (
    "MemoryError", "CUDA error: out of memory", "allocate memory", "not enough memory",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """One device type to measure, and the servers that have it, in plan order. bucket: of a model
    whose batches have several shapes, one that is not the first."""

    job: PlacedJob
    plan_file: Path
    device_type: str
    servers: tuple[str, ...]
    quickly: bool = False
    bucket: str | None = None


def answer_of(ended: Ended, asked: Asked, server: str) -> Any:
    """Returns the answer, the last line that the program printed: the interpreter may print others
    before, as from a sitecustomize. The program is the ranks' user's. Raises PlacewireError."""
    _require_done(ended, asked, server)
    last = ended.output.rstrip().rpartition(b"\n")[2]
    try:
        return json.loads(last)
    except (ValueError, RecursionError):
        raise not_understood(asked, server, f"it printed {last[-200:]!r}") from None


def not_understood(asked: Asked, server: str, why: str) -> PlacewireError:
    return PlacewireError(
        f"the answer of the profile is not understood: {why}",
        where=f"{server}, device type {asked.device_type}",
        remedy="look at what the model, and what runs whenever that Python starts, print; nothing "
        "was changed",
    )


def _require_done(ended: Ended, asked: Asked, server: str) -> None:
    if ended.status == 0:
        return
    tail = "".join(f"\n    {line}" for line in ended.tail[-12:])
    killed = ended.status < 0
    how = f"was killed by signal {-ended.status}" if killed else f"ended with {ended.status}"
    where = f"{server}, device type {asked.device_type}"
    # The kernel kills what takes too much, but others may send this signal, too.
    assumed = ended.status == -signal.SIGKILL
    if assumed or any(said in tail for said in _NO_MEMORY):
        why = ", which is taken as a lack of memory" if assumed else ""
        raise OutOfMemory(
            f"the profile {how}{why}{tail}",
            where=where,
            remedy="give `job.recompute: all`, a larger job.accumulate or the server more memory; "
            "nothing was changed",
        )
    if ended.status == _MODEL_IS_WRONG:
        said = "\n".join(ended.tail[-3:])
        # The capture names the field where it is not the model that is wrong.
        named = (field for field in ("job.recompute", "job.optimizer.groups") if field in said)
        field = next(named, "job.model")
        what = f"on {server}, for device type {asked.device_type}: {said}"
        raise refused(asked.plan_file, field, what)
    raise PlacewireError(
        f"the profile {how}{tail}",
        where=where,
        remedy="check job.python, job.workdir and the server's memory; nothing was changed",
    )


def refused(plan_file: Path, path: str, what: str) -> PlanError:
    return PlanError(str(plan_file), [(path, what)])
