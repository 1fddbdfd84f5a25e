"""Runs a program on this machine to its end, passes on its lines, and returns its answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from placewire.controller.errors import PlacewireError
from placewire.controller.launch.lines import HELD_BYTES, lines_of, text_of

TAIL_LINES = 20
# The most that a program may answer; a profile of 50,000 operators takes a fifth of it.
LARGEST_ANSWER_BYTES = 128 * 2**20
_LOOK_SECONDS = 0.02
_READ_BYTES = 65_536

# Becomes the program that a file describes: {"words": what python runs, "environment": variables to
# be added}. Lists of processes show nothing of it, and what starts it does not get the variables.
BECOME = (
    "-I",
    "-c",
    "import json,os,sys; d=json.load(open(sys.argv[1])); os.environ.update(d['environment']); "
    "os.execv(sys.executable, [sys.executable, *d['words']])",
)

OnLine = Callable[[str], None]


@dataclass(frozen=True)
class Ended:
    """status: the exit status, -N where signal N ended the program. output: all of its standard
    output. tail: the last lines of its standard error."""

    status: int
    output: bytes
    tail: tuple[str, ...]


def described(words: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """Returns the file that BECOME reads."""
    return json.dumps({"words": list(words), "environment": dict(environment)}).encode()


async def begin(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    workdir: Path | str | None,
    pass_fds: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """Starts a program in a session of its own, which it leads. Raises OSError.

    Where this task is cancelled meanwhile, the program and all that it started are killed. asyncio
    would kill the program alone, and then wait for whoever holds its pipes.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=HELD_BYTES,
            cwd=workdir,
            env=dict(environment),
            pass_fds=pass_fds,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        kill(process)
        await exited(process)
        close_pipes(process)
        raise


def ask_to_end(process: asyncio.subprocess.Process) -> None:
    """Asks a program, and what it started in its own process group, to end."""
    if process.returncode is None:  # once waited for, its pid may be another's
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def kill(process: asyncio.subprocess.Process) -> None:
    """Kills a program and all of its session: a script's processes have groups of their own."""
    if process.returncode is None:  # once waited for, its pid may be another's
        _kill_group(process.pid)  # First, because it could start more.
        for group in _groups_of(process.pid):
            _kill_group(group)


def _kill_group(group: int) -> None:
    # A group whose processes are all another user's, as after sudo, must not keep the others alive.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _groups_of(session: int) -> set[int]:
    """Returns the process groups in this session."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # It ended meanwhile.
                # pid (name) state ppid group session ...; the name may hold anything.
                stat = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(stat[3]) == session:
                    found.add(int(stat[2]))
    return found


async def exited(process: asyncio.subprocess.Process) -> int:
    """Returns the exit status once the program itself has ended. Its `wait` also waits for the ends
    of its pipes (Python 3.11). These do not come where nobody reads what is left in them, or where
    a process that the program left behind holds them."""
    while process.returncode is None:
        await asyncio.sleep(_LOOK_SECONDS)
    return process.returncode


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Closes this side of a program's pipes, also of those that are not at an end, because another
    process holds them. A program that runs is killed."""
    process._transport.close()  # type: ignore[attr-defined]


async def run_to_end(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    workdir: Path | str | None = None,
    pass_fds: Sequence[int] = (),
    given: bytes = b"",
    on_line: OnLine,
    where: str = "",
) -> Ended:
    """given: the program's standard input. on_line: gets each line of its standard error. where:
    the server that it is on, for an error.

    Raises OSError where the program cannot be started, and PlacewireError as `whole` does. Then,
    and when this task is cancelled, the program and all that it started are killed.
    """
    process = await begin(argv, environment=environment, workdir=workdir, pass_fds=pass_fds)
    assert process.stdout is not None and process.stderr is not None
    try:
        _, output, tail = await asyncio.gather(
            _feed(process, given),
            whole(process.stdout, where),
            follow(lines_of(process.stderr, redraws=True), on_line),
        )
        return Ended(await process.wait(), output, tail)
    finally:
        kill(process)
        await exited(process)
        close_pipes(process)


async def whole(stream: asyncio.StreamReader, where: str) -> bytes:
    """Returns all that comes. Raises PlacewireError, which names the server, where that is more
    than an answer has: the program is the ranks' user's, and could fill this machine's memory."""
    answer = bytearray()
    while data := await stream.read(_READ_BYTES):
        answer += data
        if len(answer) > LARGEST_ANSWER_BYTES:
            raise PlacewireError(
                f"a program there printed more than {LARGEST_ANSWER_BYTES // 2**20} MiB, and was "
                "ended",
                where=where,
                remedy="look at what the model, and what runs whenever that Python starts, print",
            )
        await asyncio.sleep(0)  # Reading what is there already waits for nothing.
    return bytes(answer)


async def follow(lines: AsyncIterator[bytes], on_line: OnLine) -> tuple[str, ...]:
    """Passes each line on; returns the last ones."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    async for line in lines:
        tail.append(text_of(line))
        on_line(tail[-1])
    return tuple(tail)


async def _feed(process: asyncio.subprocess.Process, given: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # the program does not read all of it
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()
