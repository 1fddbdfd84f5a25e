"""Child processes of a measurement: none outlives it."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process


async def end(process: Process) -> None:
    """Kills it where it still runs, and reaps it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def end_all(processes: list[Process]) -> None:
    await asyncio.gather(*(end(process) for process in processes))
