"""Reads a server from beside its daemon, which may change it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from placewire.agent.reconcile.effects import EffectError
from placewire.agent.store import StoreError, read_kept

ATTEMPTS = 10
PAUSE_SECONDS = 0.2

Result = TypeVar("Result")


def read_steadily(directory: Path, read: Callable[[], Result]) -> Result:
    """Returns what `read` returns, of a time in which the lease on disk stayed in one phase of one
    generation. Otherwise the server would be judged by a state that it had before or after.

    directory: the agent's state directory. Raises EffectError where a change begins or ends during
    every attempt; and what `read` raises.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        before = _moment(directory)
        result = read()
        if _moment(directory) == before:
            return result
    raise EffectError(
        "the agent's changes of this server begin and end again and again, so what belongs to them "
        "cannot be told; ask again once they have ended"
    )


def _moment(directory: Path) -> tuple[int, str] | None:
    """None where the state cannot be read, which `read` tells."""
    try:
        lease = read_kept(directory).lease
    except (OSError, StoreError):
        return None
    return lease.generation, lease.phase
