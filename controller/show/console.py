"""Where it is printed, and how a table looks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

# Where there is no terminal to ask.
_WIDTH = 100


def console(*, to_error: bool = False) -> Console:
    made = Console(stderr=to_error, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = _WIDTH
    return made


def table(title: str, *, words: Sequence[str], figures: Sequence[str] = ()) -> Table:
    """Columns of words, then of figures. Only words give way where it would be too wide, and they
    keep every character."""
    made = Table(title=title, title_justify="left")
    for heading in words:
        made.add_column(heading, overflow="fold")
    for heading in figures:
        made.add_column(heading, justify="right", no_wrap=True)
    return made
