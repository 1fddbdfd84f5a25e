"""The one way a function is compiled here, typed so that callers keep their own types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """No fast-math: the same input must give the same bits on every machine."""
    return cast(F, njit(cache=True, error_model="numpy")(function))
