"""Writes Markdown whose lines are at most 100 columns wide."""

from __future__ import annotations

import re
import textwrap

WIDTH = 100
# Stands for the spaces of a code span while text is wrapped; no text contains it.
_GLUE = "\N{NO-BREAK SPACE}"


def paragraph(text: str, indent: str = "") -> str:
    """Wraps text between words, but not within backticks. indent: of all lines but the first."""
    begin = text[: len(text) - len(text.lstrip())]
    glued = re.sub(r"`[^`]+`", lambda span: span[0].replace(" ", _GLUE), " ".join(text.split()))
    lines = textwrap.wrap(
        glued, WIDTH - 1,  # a backslash may follow
        initial_indent=begin, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines).replace(_GLUE, " ")


def item(head: str, below: str = "") -> str:
    """An entry of a list; `below` stands under it, on lines of its own."""
    first = paragraph(f"- {head}", indent="  ")
    if not below:
        return first
    return f"{first}\\\n{paragraph('  ' + below, indent='  ')}"
