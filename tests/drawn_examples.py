"""How many examples a test of a property draws."""

from __future__ import annotations

from hypothesis import settings

_SAMPLE = 6
_FEWEST = 5


def examples(number: int) -> int:
    """All of them, but in `make test`, which draws the same ones each time, a sixth or five."""
    if settings.get_current_profile_name() != "ci":
        return number
    return min(number, max(number // _SAMPLE, _FEWEST))
