"""How every command ends: an exit code, and one sentence where something was wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

DONE, BAD_INPUT, INFEASIBLE, INTERRUPTED = 0, 3, 4, 130


class InputError(ValueError):
    """A file or an argument that is not what it should be."""


def ended(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """What `run` returns, or the code for what was wrong with its input."""
    try:
        return run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # not an input: nobody reads what is printed (optimizer/cli.py)
        raise
    except OSError as error:
        return _complain(f"{error.filename or ''}: {error.strerror or error}", BAD_INPUT)
    except ValueError as error:  # InputError, GraphError, PlacementError, InfeasibleError
        from placewire.optimizer.engines.refusals import OutOfTimeError
        from placewire.optimizer.problem import InfeasibleError

        unplaced = isinstance(error, InfeasibleError | OutOfTimeError)
        return _complain(str(error), INFEASIBLE if unplaced else BAD_INPUT)


def _complain(what: str, code: int) -> int:
    print(f"error: {what}", file=sys.stderr)
    return code
