"""Shows text that others wrote as it is: what a terminal would obey is written as an escape.

A rank, an agent, a server or a file can hold characters that set a terminal's title, fill its
clipboard, clear it, turn the direction of writing or forge a line. Python's own escapes stand for
them here, such as `\\x1b`, `\\r` and `\\u202e`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping

# The version of all documents that commands print with --json (docs/json.md). It rises where a key
# goes, or changes its meaning.
JSON_VERSION = 1
_LINE = re.compile(r"\n(?=\S)")


def visible(text: str) -> str:
    """The text in one line: its line breaks are escapes, too."""
    return text if text.isprintable() else "".join(map(_shown, text))


def visible_lines(text: str, *, indent: str = "") -> str:
    """The text with its line breaks. indent: begins each further line that has no space before it,
    so that none can pass for a message of ours."""
    if text.isprintable():
        return text
    kept = "".join(c if c == "\n" else _shown(c) for c in text)
    return _LINE.sub(f"\n{indent}", kept)


def last_state(line: bytes) -> bytes:
    """What stands on a terminal's line in the end. A program that shows its progress goes back to
    the line's begin (`\\r`) and writes it anew, perhaps ten times a second. What ends the line
    stays as it is: a `\\r` may be followed by more of the line, or by its end."""
    text = line.rstrip(b"\r\n")
    return text.rpartition(b"\r")[2] + line[len(text) :]


def json_document(document: Mapping[str, object], *, indent: int | None = None) -> str:
    """Returns what a command prints with --json. A document that has a version keeps it."""
    return visible_json(json.dumps({"version": JSON_VERSION, **document}, indent=indent))


def visible_json(text: str) -> str:
    """A JSON document that means the same, with its own line breaks."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or _shown(c) == c else json.dumps(c)[1:-1] for c in text)


def _shown(character: str) -> str:
    if character.isprintable() or character == "\t" or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()
