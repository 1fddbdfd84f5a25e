"""Runs a command's work so that an interrupt ends it but leaves nothing half done."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any


def interruptible(
    work: Coroutine[Any, Any, int], *, ending: str = "putting back what is half done"
) -> int:
    """Runs the work and returns its result. The first SIGINT or SIGTERM cancels the work, which
    then restores what it changed; further signals do not stop that. ending: what the work does
    meanwhile, as the user is told. Raises KeyboardInterrupt once work that was cancelled has
    ended."""

    async def watched() -> int:
        task = asyncio.current_task()
        assert task is not None
        signals: list[int] = []

        def on_signal(number: int) -> None:
            if not signals:
                task.cancel()
            signals.append(number)
            print(f"controller: interrupted; {ending}", file=sys.stderr)

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
