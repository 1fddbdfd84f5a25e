"""Says which extra of the distribution a command needs, where only a part of it is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

_USAGE = 2


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Ends the program with 2 where a module of Placewire imports a package that is missing. A
    missing module of the user's own is raised as it is."""
    try:
        yield
    except ModuleNotFoundError as error:
        *_, (importing, _) = walk_tb(error.__traceback__)
        ours = str(importing.f_globals.get("__name__")).startswith("placewire.")
        if not ours or str(error.name).startswith("placewire"):
            raise
        what = f"the package {error.name} is not installed, which this command needs"
        print(f"{extra}: {what}; pip install 'placewire[{extra}]'", file=sys.stderr)
        raise SystemExit(_USAGE) from error
