"""Tests that a cancellation neither stops uninterruptible work nor hides how it ended."""

from __future__ import annotations

import asyncio

import pytest

from placewire.controller.uninterruptible import uninterruptible


@pytest.mark.parametrize("fails", [False, True])
async def test_it_is_done_before_the_cancellation_is_heard(fails: bool) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        begun.set()
        await asyncio.sleep(0.05)
        done.set()
        if fails:
            raise ZeroDivisionError
        return 7

    caller = asyncio.create_task(uninterruptible(work()))
    await begun.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError if fails else asyncio.CancelledError):
        await caller
    assert done.is_set()


async def test_its_result() -> None:
    assert await uninterruptible(asyncio.sleep(0, result=7)) == 7
