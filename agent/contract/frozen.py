"""Base of everything that crosses the wire: immutable, unknown fields refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

# With a limit, text is looked at, and refused where it has no UTF-8: JSON can write half a
# surrogate pair, which no file, database or answer takes.
LONGEST_TEXT = 1_000_000


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=LONGEST_TEXT)
