"""Runs a command of the optimizer in a process of its own, which can be killed at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable

from placewire.controller.errors import InfeasiblePlacement, PlacewireError
from placewire.controller.launch.programs import run_to_end

Say = Callable[[str], None]
_INFEASIBLE = 4


async def run_relayed(argv: list[str], say: Say) -> None:
    """Tells `say` each line that the process prints. The process is killed where this task is
    cancelled. Raises InfeasiblePlacement, PlacewireError."""
    ended = await run_to_end(argv, environment=os.environ, on_line=lambda line: say("  " + line))
    if ended.status == _INFEASIBLE:
        raise InfeasiblePlacement("\n".join(ended.tail[-3:]) or "no placement fits the cluster")
    if ended.status != 0:
        raise PlacewireError(
            f"{argv[2]} ended with {ended.status}",
            where=" ".join(argv[2:4]),
            remedy="\n  ".join(ended.tail[-12:]),
        )
