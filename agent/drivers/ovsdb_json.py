"""Parses what ovsdb-server sends with `json`, in place of the slow parser of the package `ovs`.

Without its C extension, which needs Open vSwitch's headers to be built, `ovs` reads JSON in Python,
character by character: half of all that a busy agent computed. Here a regular expression finds
where a message ends, and `json` parses it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import ovs.json

# A whole string, in which braces mean nothing; or a brace; or the quote of a string cut off.
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"|[{}"]', re.DOTALL)


class Parser:
    """Takes the place of ovs.json.Parser. Parses one message of JSON-RPC (RFC 7047), an object."""

    def __init__(self) -> None:
        self._text = ""
        self._scanned = 0
        self._depth = 0
        self._done = False

    def feed(self, text: str) -> int:
        """Takes the next part of what was received. Returns how many of its characters belong to
        the message: all, until the message is whole."""
        before = len(self._text)
        self._text += text
        if not "{".startswith(self._text.lstrip()[:1]):
            self._done = True  # `finish` says what is wrong.
            return len(text)
        for mark in _MARK.finditer(self._text, self._scanned):
            if mark[0] == '"':
                self._scanned = mark.start()
                return len(text)
            self._scanned = mark.end()
            self._depth += {"{": 1, "}": -1}.get(mark[0], 0)
            if self._depth == 0:
                self._done = True
                self._text = self._text[: mark.end()]
                return mark.end() - before
        return len(text)

    def is_done(self) -> bool:
        return self._done

    def finish(self) -> Any:
        """The message; or a string, which no message is, that says what is wrong with it."""
        try:
            return json.loads(self._text)
        except (ValueError, RecursionError) as error:
            return f"{error}: {self._text[:80]!r}"


def parse_quickly() -> None:
    """Makes `ovs` use Parser in this process, unless it has its C extension."""
    if ovs.json.PARSER == ovs.json.PARSER_PY:
        ovs.json.Parser = Parser
