"""The base of every value that is read from a file or a message, or written to one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

# pydantic checks text that has a limit, and refuses text that is not UTF-8: JSON can write half a
# surrogate pair, which no file, database or answer takes.
LONGEST_TEXT = 1_000_000


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
        """What a cached_property derived from the old values is not copied: the copy derives it
        from its own values."""
        copied = super().model_copy(update=update, deep=deep)
        for name in set(copied.__dict__) - set(type(self).model_fields):
            del copied.__dict__[name]
        return copied
