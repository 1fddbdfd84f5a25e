"""Runs work that a cancellation must not stop halfway, such as restoring servers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def uninterruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """Returns or raises what the work does. Where the caller is cancelled meanwhile, the work
    still runs to its end; only then, if it did not fail, is CancelledError raised."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
