"""Runs a command of the optimizer in a process of its own, which can be killed at any moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from placewire.controller.errors import InfeasiblePlacement, PlacewireError
from placewire.controller.launch.programs import run_to_end
from placewire.optimizer.commands.outcome import ERROR, INFEASIBLE

Say = Callable[[str], None]
# -P: otherwise Python would import from the folder that this process happens to be in, which may be
# another user's, and root is the one who runs it in a lab.
OPTIMIZER_PROGRAM = ("-P", "-m", "placewire.optimizer.cli")
_MOST_LINES = 12


async def run_relayed(words: Sequence[str], say: Say) -> bytes:
    """Runs `python WORDS`; tells `say` each line of its standard error, and returns its standard
    output. Cancelling kills it. Raises InfeasiblePlacement where no placement fits, PlacewireError
    where it fails otherwise."""
    argv = [sys.executable, *words]
    # This process reads the child's output as UTF-8, whatever this terminal's encoding is.
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"}
    ended = await run_to_end(argv, environment=environment, on_line=lambda line: say("  " + line))
    if ended.status == INFEASIBLE:
        told = "\n".join(_complaint(ended.tail))
        raise InfeasiblePlacement(told or "no placement fits the cluster")
    if ended.status != 0:
        module, command = words[words.index("-m") + 1 :][:2]
        raise PlacewireError(
            f"{module} ended with {ended.status}",
            where=f"{module} {command}",
            remedy="\n  ".join(_complaint(ended.tail)[-_MOST_LINES:]),
        )
    return ended.output


def _complaint(tail: Sequence[str]) -> Sequence[str]:
    """Returns the program's last error, without the progress before it; or all of the tail, where
    the program told of none, as when a signal ended it."""
    found = [k for k, line in enumerate(tail) if line.startswith(ERROR)]
    return [tail[found[-1]].removeprefix(ERROR), *tail[found[-1] + 1 :]] if found else tail
