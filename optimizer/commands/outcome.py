"""How every command reports: its exit code, and its lines on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from placewire.visible import visible_lines

DONE, BAD_INPUT, INFEASIBLE, INTERRUPTED = 0, 3, 4, 130


class InputError(ValueError):
    """A file or an argument is wrong."""


def ended(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Returns what `run` returns, or after an error the exit code for it, and says the error."""
    try:
        return run(options)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # an OSError, but no wrong input: optimizer/cli.py handles it
        raise
    except OSError as error:
        say(f"error: {error.filename or ''}: {error.strerror or error}")
        return BAD_INPUT
    except ValueError as error:  # InputError, GraphError, PlacementError, InfeasibleError
        from placewire.optimizer.engines.refusals import OutOfTimeError
        from placewire.optimizer.problem import InfeasibleError

        say(f"error: {error}")
        return INFEASIBLE if isinstance(error, InfeasibleError | OutOfTimeError) else BAD_INPUT


def say(line: str) -> None:
    print(visible_lines(line), file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Prints a result: lines, which may quote files of others."""
    print(visible_lines(text))
