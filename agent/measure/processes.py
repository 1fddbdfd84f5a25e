"""Starts and ends the child processes of measurements; none outlives the agent, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process

_LOOK_SECONDS = 0.02
_PART_BYTES = 64 * 1024


def _without_privileges() -> tuple[str, ...]:
    """Words for setpriv. Only root can, and must, empty the bounding set, too: its programs would
    get everything in it anew. The unit's user gets nothing by starting a program."""
    bounding = ("--bounding-set=-all",) if os.geteuid() == 0 else ()
    return ("--inh-caps=-all", "--ambient-caps=-all", *bounding, "--no-new-privs")


def why_not_started(error: OSError) -> str:
    """Returns why a program cannot be started, and what to do where this agent has too many files
    open."""
    if error.errno != errno.EMFILE:
        return error.strerror or str(error)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"the agent may have {most} files open, and each rate that is measured at once takes up to "
        "three, at either end. Raise `LimitNOFILE=` of its unit (`systemctl edit placewire-agent` "
        "on this server, then restart it), or have fewer rates, as with `network.sharing: job`"
    )


async def output_of(process: Process, most_bytes: int) -> tuple[bytes, bytes]:
    """Reads standard output and error to their ends, and waits for the process. Keeps the first so
    many bytes of each: iperf3 prints what its peer says, and that may be gigabytes."""
    assert process.stdout is not None and process.stderr is not None, "piped by `start`"
    out, err = await asyncio.gather(
        _beginning(process.stdout, most_bytes), _beginning(process.stderr, most_bytes)
    )
    await process.wait()
    return out, err


async def _beginning(stream: asyncio.StreamReader, most_bytes: int) -> bytes:
    kept = bytearray()
    while part := await stream.read(_PART_BYTES):
        kept += part[: most_bytes - len(kept)]
    return bytes(kept)


class Processes:
    """The processes that were started here and not reaped yet."""

    def __init__(self) -> None:
        self._running: dict[int, Process] = {}
        self._starting: set[asyncio.Task[Process]] = set()

    async def start(self, *command: str) -> Process:
        """Pipes standard output and error. Raises FileNotFoundError where there is no such program,
        and OSError."""
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(command[0])
        # An iperf3 server that outlives the agent would hold its TCP port for ever. It talks with
        # whoever dials it, and needs none of the agent's privileges.
        words = ("setpriv", "--pdeathsig", "KILL", *_without_privileges(), "--", *command)
        # Shielded, because a cancellation in the middle would leave a process that nobody knows of.
        task = asyncio.create_task(self._start(words))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return await asyncio.shield(task)

    async def _start(self, words: tuple[str, ...]) -> Process:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        # Not in a callback of the task: from Python 3.12 on, who gathers tasks that are done goes
        # on before their callbacks, and would not know of this process.
        self._running[process.pid] = process
        return process

    async def end(self, process: Process) -> None:
        """Kills it where it still runs, and reaps it."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            # Its `wait` would also wait for the ends of its pipes, which nobody may read any more.
            while process.returncode is None:
                await asyncio.sleep(_LOOK_SECONDS)
        self._running.pop(process.pid, None)

    async def end_all(self) -> None:
        """Ends those that are being started, too."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(self.end(process) for process in list(self._running.values())))

    def kill_left(self) -> None:
        """Kills without waiting, at the end of the daemon."""
        for process in self._running.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
