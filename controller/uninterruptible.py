"""Work that a cancellation does not stop halfway: undoing, and telling every server the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def uninterruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """Its result, or what it raises, once it is done. Raises CancelledError only then, where the
    caller was cancelled meanwhile and the work did not fail."""
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
