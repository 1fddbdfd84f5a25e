"""How every command reports: its exit code, and its lines on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from placewire.command_line import INTERRUPTED
from placewire.visible import visible_lines

Given = TypeVar("Given")
DONE, BAD_INPUT, INFEASIBLE = 0, 3, 4
# Begins the line that says why a command failed.
ERROR = "error: "


class InputError(ValueError):
    """A file or an argument is wrong."""


def ended(run: Callable[[Given], int], given: Given) -> int:
    """Returns what `run` returns, or after an error the exit code for it, and says the error.
    given: the options, or the arguments of a command whose options come from packages."""
    try:
        return run(given)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # an OSError, but no wrong input: optimizer/cli.py handles it
        raise
    except OSError as error:
        say(f"{ERROR}{error.filename or ''}: {error.strerror or error}")
        return BAD_INPUT
    except ValueError as error:  # InputError, GraphError, PlacementError, InfeasibleError
        from placewire.optimizer.engines.refusals import OutOfTimeError
        from placewire.optimizer.problem import InfeasibleError

        say(f"{ERROR}{error}")
        return INFEASIBLE if isinstance(error, InfeasibleError | OutOfTimeError) else BAD_INPUT


def say(line: str) -> None:
    print(visible_lines(line), file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Prints a result: lines, which may quote files of others."""
    print(visible_lines(text))
