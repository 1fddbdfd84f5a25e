"""How templates of pages and pictures are filled."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from placewire.visible import visible


def templates(folder: Path) -> Environment:
    """Whatever is written into a page is escaped, and shows what a terminal or a browser would
    obey: agents, ranks and files can hold anything."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)
        ),
    )
