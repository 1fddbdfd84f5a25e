"""The base class of every value that is read from, or written to, a file or a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

# Only where text has a limit does pydantic refuse text that is not UTF-8: JSON can hold half a
# surrogate pair, which no file, database or answer can.
LONGEST_TEXT = 1_000_000
# How much a message shows of a mistake's place, in which keys of any length can be.
_LONGEST_PLACE = 200
# Of more mistakes than this none is told: pydantic would write down each.
_MOST_MISTAKES = 1000


class Frozen(BaseModel):
    """Immutable. Unknown keys, numbers that are not finite and text that is not UTF-8 are refused
    with pydantic.ValidationError."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        str_max_length=LONGEST_TEXT,
        ignored_types=(cached_property,),
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copies all fields, but no values of a cached_property: the copy derives its own."""
        copied = super().model_copy(update=update, deep=deep)
        for name in set(copied.__dict__) - set(type(self).model_fields):
            del copied.__dict__[name]
        return copied


def place_of(parts: Iterable[int | str]) -> str:
    """The place of a mistake in words, cut to fit a message. parts: `loc` of pydantic's error."""
    place = ".".join(map(str, parts))
    return place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}…"


def first_mistake(error: ValidationError) -> str:
    """Where the first mistake is, and what it is; how many there are, where these are very many."""
    if (count := error.error_count()) > _MOST_MISTAKES:
        return f"it has {count} mistakes"
    first = error.errors(include_input=False)[0]
    return f"{place_of(first['loc'])} {first['msg']}"
