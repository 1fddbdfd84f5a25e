"""Makes the console to print on, and tables in one style."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from placewire.visible_console import VisibleConsole

# Used where the output is no terminal.
_WIDTH = 100


def console(*, to_error: bool = False) -> Console:
    made = VisibleConsole(stderr=to_error, soft_wrap=True)
    if not made.is_terminal:
        made.width = _WIDTH
    return made


def table(title: str, *, words: Sequence[str], figures: Sequence[str] = ()) -> Table:
    """Columns of words, then of figures. Where space is short only words fold; nothing is cut."""
    made = Table(title=title, title_justify="left")
    for heading in words:
        made.add_column(heading, overflow="fold")
    for heading in figures:
        made.add_column(heading, justify="right", no_wrap=True)
    return made
