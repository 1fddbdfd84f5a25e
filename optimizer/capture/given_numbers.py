"""Numbers of settings as a user gives them. JSON's 1 and 1.0 mean the same, and must have the same
text: it is in the structure of the step, which every rank compares with its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def with_floats(document: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The document with the numbers of these keys as floats. Raises TypeError where one is none."""
    found = dict(document)
    for key in keys:
        value = found.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{key} {value!r} must be a number")
        found[key] = float(value)
    return found
