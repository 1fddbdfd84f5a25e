"""Child processes of a measurement: none outlives it, however this process ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process


class Processes:
    """All that one measurement has started and that has not been reaped."""

    def __init__(self) -> None:
        self._running: dict[int, Process] = {}
        self._starting: set[asyncio.Task[Process]] = set()

    async def start(self, *command: str) -> Process:
        """Output and complaints are piped. Raises FileNotFoundError."""
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(command[0])
        # One that waits for a client would hold its TCP port for ever.
        words = ("setpriv", "--pdeathsig", "KILL", "--", *command)
        # Shielded: cancelled in the middle of it, a process would run that nobody knows of.
        task = asyncio.create_task(
            asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        )
        self._starting.add(task)
        task.add_done_callback(self._started)
        return await asyncio.shield(task)

    async def end(self, process: Process) -> None:
        """Kills it where it still runs, and reaps it."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self._running.pop(process.pid, None)

    async def end_all(self) -> None:
        """Those that are being started, too."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(self.end(process) for process in list(self._running.values())))

    def kill_left(self) -> None:
        """For the end of the daemon, when nothing can be waited for any more."""
        for process in self._running.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def _started(self, task: asyncio.Task[Process]) -> None:
        self._starting.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._running[task.result().pid] = task.result()
