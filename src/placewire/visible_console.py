"""A console that obeys nothing that is in a text, neither markup nor what a terminal would obey.

What people see of ranks, agents, servers and files goes through here, so that no caller can forget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from placewire.visible import visible_lines


class VisibleConsole(Console):
    """Takes the arguments of rich's console."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **arguments)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            # Before the layout, so that columns have room for the escapes.
            renderable = _visible(renderable)
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible_lines(segment.text), segment.style)


def _visible(text: Text) -> Text:
    """The same text. The styles of its parts stay, unless a character is shown as an escape."""
    plain = visible_lines(text.plain)
    if plain == text.plain:
        return text
    return Text(plain, style=text.style, justify=text.justify, overflow=text.overflow, end=text.end)
