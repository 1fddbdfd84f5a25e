"""Reasons why there is no figure, each once, by what they say beside figures and operators."""

from __future__ import annotations

import re

# Operators and the like, and numbers that are no part of a name.
_QUOTED = re.compile(r"'[^']*'")
_FIGURE = re.compile(r"(?<![\w.-])[0-9]+(?:[.,][0-9]+)*")


class Reasons:
    """Numbered from 1 in the order in which they were first given; the first stands for all that
    are alike."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def number(self, why: str, told: str | None = None) -> int:
        """told: what is shown for it, if not `why` itself."""
        alike = _FIGURE.sub("#", _QUOTED.sub("''", why))
        self._first.setdefault(alike, why if told is None else told)
        return list(self._first).index(alike) + 1

    @property
    def lines(self) -> list[str]:
        return [f"({number}) {told}" for number, told in enumerate(self._first.values(), 1)]
