"""Runs a command's work so that an interrupt ends it but leaves nothing half done."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from placewire.controller.uninterruptible import interrupt_means, meaning_of_interrupt


def interruptible(work: Coroutine[Any, Any, int], *, means: str = "") -> int:
    """Runs the work and returns its result. The first SIGINT, SIGTERM or SIGHUP (the terminal was
    closed, and nohup does not ignore it) cancels the work, which then restores what it changed;
    further signals do not stop that. At each the user is told what it means now. means: until the
    work says otherwise. Raises KeyboardInterrupt once work that was cancelled has ended, with what
    became of it."""
    interrupt_means(means)

    async def watched() -> int:
        task = asyncio.current_task()
        assert task is not None
        signals: list[int] = []

        def on_signal(number: int) -> None:
            if not signals:
                task.cancel()
            signals.append(number)
            print(f"controller: {_interrupted()}", file=sys.stderr)

        loop = asyncio.get_running_loop()
        heard = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            heard.append(signal.SIGHUP)
        for number in heard:
            loop.add_signal_handler(number, on_signal, number)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt(_interrupted()) from None


def _interrupted() -> str:
    words = meaning_of_interrupt()
    return f"interrupted; {words}" if words else "interrupted"
