"""Numbers the reasons why a figure is missing; reasons that differ only in details count once."""

from __future__ import annotations

import re

# Details: quoted names of operators and the like, and numbers that are no part of a name.
_QUOTED = re.compile(r"'[^']*'")
_FIGURE = re.compile(r"(?<![\w.-])[0-9]+(?:[.,][0-9]+)*")


class Reasons:
    """Reasons, numbered from 1 in the order in which they first came. The first stands for all that
    differ from it only in details."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def number(self, why: str, told: str | None = None) -> int:
        """told: what `lines` shows for this reason, if not `why` itself."""
        kind = _FIGURE.sub("#", _QUOTED.sub("''", why))
        self._first.setdefault(kind, why if told is None else told)
        return list(self._first).index(kind) + 1

    @property
    def lines(self) -> list[str]:
        return [f"({number}) {told}" for number, told in enumerate(self._first.values(), 1)]
