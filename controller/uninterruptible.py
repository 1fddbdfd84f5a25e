"""Runs work that a cancellation must not stop halfway, such as restoring servers, and knows what an
interrupt means at any moment: what a command does with it changes from phase to phase."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

NOTHING_CHANGED = "no server's network was changed"
_meaning = [""]
_meaning_meanwhile: list[str] = []


def interrupt_means(words: str) -> None:
    """words: what follows "interrupted" from now on. A process runs one command at a time."""
    _meaning[:] = [words]


def meaning_of_interrupt() -> str:
    return (_meaning_meanwhile or _meaning)[-1]


async def told_uninterruptible(
    work: Coroutine[Any, Any, Result], *, means: str, then: str
) -> Result:
    """As `uninterruptible`. means: what an interrupt means meanwhile, whatever the work is made of
    says; then: once it has ended."""

    async def told() -> Result:
        result = await work
        interrupt_means(then)
        return result

    _meaning_meanwhile.append(means)
    try:
        return await uninterruptible(told())
    finally:
        _meaning_meanwhile.remove(means)


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
