"""Runs a tool of the system with a time limit; an error has what the tool said."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from placewire.agent.reconcile.effects import EffectError

TIMEOUT_SECONDS = 20.0


def run(command: Sequence[str], stdin: str | None = None) -> str:
    """Returns the tool's standard output. Raises EffectError."""
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except FileNotFoundError as error:
        raise EffectError(f"{command[0]} is not installed on this server") from error
    except PermissionError as error:
        # Also raised where the tool is in no folder of PATH and one of them may not be searched.
        raise EffectError(f"{command[0]} is not there, or this user may not run it") from error
    except subprocess.TimeoutExpired as error:
        raise EffectError(f"{' '.join(command)}: no answer in {TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise EffectError(f"{' '.join(command)}: {said or f'exit {done.returncode}'}")
    return done.stdout
