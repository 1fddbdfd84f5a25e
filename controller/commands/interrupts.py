"""Work that an interrupt ends, and leaves nothing half done."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any


def interruptible(work: Coroutine[Any, Any, int]) -> int:
    """The first SIGINT or SIGTERM cancels the work, which restores what it changed on its way out;
    further ones do not stop the restoring. Raises KeyboardInterrupt after an interrupted one."""

    async def watched() -> int:
        task = asyncio.current_task()
        assert task is not None
        signals: list[int] = []

        def on_signal(number: int) -> None:
            if not signals:
                task.cancel()
            signals.append(number)
            print(
                "controller: interrupted; ending so that nothing is left half done", file=sys.stderr
            )

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
