"""Reasons why there is no figure, each once, by what they say beside their figures."""

from __future__ import annotations

import re


class Reasons:
    """Numbered from 1 in the order in which they were first given; the first one's figures stand
    for all that are alike."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def number(self, why: str, told: str | None = None) -> int:
        """told: what is shown for it, if not `why` itself."""
        alike = re.sub(r"\b[0-9][0-9.,]*", "#", why)  # not what a name ends with
        self._first.setdefault(alike, why if told is None else told)
        return list(self._first).index(alike) + 1

    @property
    def lines(self) -> list[str]:
        return [f"({number}) {told}" for number, told in enumerate(self._first.values(), 1)]
