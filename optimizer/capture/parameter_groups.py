"""Parameters that an optimizer updates with settings of their own, found by patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.given_numbers import with_floats
from placewire.optimizer.capture.optimizer_options import Option

# How many parameters an error names.
_NAMED = 3


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with settings of their own. match: patterns as in fnmatch, of which one fits the
    parameter's name, or the part of it after a dot. lr, options: what differs from the others."""

    match: tuple[str, ...]
    lr: float | None = None
    options: Mapping[str, Option] = field(default_factory=dict)

    @staticmethod
    def of(document: Mapping[str, Any]) -> ParameterGroup:
        """document: the fields. Raises TypeError."""
        match = document.get("match")
        if not isinstance(match, list | tuple) or not match:
            raise TypeError("each of groups needs a list `match` of patterns")
        known = [one.name for one in fields(ParameterGroup)]
        for key in document:
            if key not in known:
                hint = f"; as options: {{{key}: …}}" if key in ("weight_decay", "momentum") else ""
                raise TypeError(f"one of groups has {key!r}; it takes {', '.join(known)}{hint}")
        return ParameterGroup(**{**with_floats(document, ("lr",)), "match": tuple(match)})

    @property
    def signature(self) -> str:
        lr = {} if self.lr is None else {"lr": self.lr}
        own = ",".join(
            f"{k}={v!r}" for k, v in {**lr, **dict(sorted(self.options.items()))}.items()
        )
        return f"{'|'.join(self.match)}({own})"

    def has(self, parameter: str) -> bool:
        return any(_fits(parameter, pattern) for pattern in self.match)


def _what_there_is(parameters: Sequence[str], pattern: str) -> str:
    """Parameters that differ from the pattern in capitals alone, or else some of all."""
    lower = pattern.lower()
    near = [name for name in parameters if _fits(name.lower(), lower)]
    if near:
        return f"; capital letters count, and there is {near[0]}"
    return f"; the model has {', '.join(parameters[:_NAMED])}, …"


def _fits(parameter: str, pattern: str) -> bool:
    return any(fnmatchcase(parameter, one) for one in (pattern, f"*.{pattern}"))


def require_all_used(groups: Sequence[ParameterGroup], parameters: Sequence[str]) -> None:
    """Raises CaptureError where a pattern of a group fits none of the trained parameters, as by a
    typing error."""
    for k, group in enumerate(groups):
        for pattern in group.match:
            if not any(_fits(name, pattern) for name in parameters):
                raise CaptureError(
                    f"job.optimizer.groups[{k}]: no trained parameter is called like "
                    f"{pattern!r}{_what_there_is(parameters, pattern)}"
                )
