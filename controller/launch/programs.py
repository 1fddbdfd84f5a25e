"""One program run to its end: what it is given, what it says meanwhile, what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A step event is a few hundred bytes; a user's own print may be anything.
LONGEST_LINE_BYTES = 2**20
TAIL_LINES = 20


@dataclass(frozen=True)
class Ended:
    """status: the exit status, -N where signal N ended it. output: all of its standard output.
    tail: the last lines of its standard error."""

    status: int
    output: bytes
    tail: tuple[str, ...]


async def run_to_end(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    workdir: Path | str | None = None,
    given: bytes = b"",
    on_line: Callable[[str], None],
) -> Ended:
    """given: its standard input. on_line: told each line of its standard error.

    Raises OSError where it cannot be started. When this task is cancelled it is killed, and all
    that it started.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE_BYTES,
        cwd=workdir,
        env=dict(environment),
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        _, output, tail = await asyncio.gather(
            _feed(process, given), process.stdout.read(), _follow(process.stderr, on_line)
        )
        return Ended(await process.wait(), output, tail)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """To its end; a line that is longer than the stream's limit is left out."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # what was read of it is dropped
            continue
        if not line:
            return
        yield line


async def _feed(process: asyncio.subprocess.Process, given: bytes) -> None:
    stream = process.stdin
    assert stream is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it does not want to know
        stream.write(given)
        await stream.drain()
    stream.close()


async def _follow(stream: asyncio.StreamReader, on_line: Callable[[str], None]) -> tuple[str, ...]:
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    async for line in lines_of(stream):
        tail.append(line.decode(errors="replace").rstrip())
        on_line(tail[-1])
    return tuple(tail)
