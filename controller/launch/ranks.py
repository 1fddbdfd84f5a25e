"""All ranks of one job, from start to end: their events, and what happens when one fails.

Either every rank finishes, or none is left: when one fails, says nothing for too long, or the work
is cancelled, all are ended, by SIGTERM and then by SIGKILL. When this process is killed they go on,
until the time has passed that they were last told they have.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from placewire.controller.errors import JobFailed
from placewire.controller.launch.launcher import RankProcess, Starter
from placewire.controller.uninterruptible import uninterruptible
from placewire.job.contract.specification import (
    Carried,
    Failed,
    Finished,
    Hold,
    ProgramSpec,
    RankEvent,
    parse_rank_event,
)

# A rank captures its model before its first event, on a busy machine for a minute or two.
SILENCE_SECONDS = 300.0
TERMINATE_SECONDS = 3.0
_KILL_SECONDS = 3.0
# When one rank dies, its peers fail because of it: so long to see who was first and why.
_BLAME_SECONDS = 0.5
_DRAIN_SECONDS = 1.0
_TAIL_LINES = 20
_TELL_SECONDS = 2.0

OnLine = Callable[[int, str, bool], None]


@dataclass
class _Followed:
    """A rank and what it said; tail: its last lines of free text."""

    process: RankProcess
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    finished: bool = False
    failure: Failed | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    exit: asyncio.Task[int] | None = None
    exited_seconds: float = 0.0
    told_seconds: float = math.inf

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self.exit.result() if self.exit is not None and self.exit.done() else None

    @property
    def has_failed(self) -> bool:
        return self.status is not None and (self.status != 0 or not self.finished)


async def run_ranks(
    launcher: Starter,
    specs: Sequence[ProgramSpec],
    on_event: Callable[[RankEvent], None],
    *,
    on_line: OnLine = lambda rank, text, is_error: None,
    silence_seconds: float = SILENCE_SECONDS,
    held_seconds: Callable[[], float] | None = None,
) -> list[RankEvent]:
    """All events of all ranks, in the order in which they came, once every rank has finished.

    on_line: told each line that a rank printed beside its events, and whether on standard error.
    held_seconds: for how long from now the ranks may run on should this process be gone.

    Raises JobFailed naming the rank, its server, how it ended and its last lines. No rank is left
    when this returns, raises or is cancelled.
    """
    job = _Job(on_event, on_line)
    telling: asyncio.Task[None] | None = None
    try:
        for spec in specs:
            job.follow(await launcher.start(spec))
        if held_seconds is not None:
            telling = asyncio.create_task(job.tell(held_seconds))
        await job.watch(silence_seconds)
    finally:
        if telling is not None:
            telling.cancel()
        await uninterruptible(job.end())
    return job.events


class _Job:
    def __init__(self, on_event: Callable[[RankEvent], None], on_line: OnLine) -> None:
        self.events: list[RankEvent] = []
        self._on_event, self._on_line = on_event, on_line
        self._ranks: list[_Followed] = []
        self._heard = time.monotonic()

    def follow(self, process: RankProcess) -> None:
        rank = _Followed(process)
        rank.tasks = [
            asyncio.create_task(self._read_output(rank)),
            asyncio.create_task(self._read_errors(rank)),
        ]
        rank.exit = asyncio.create_task(self._await_exit(rank))
        self._ranks.append(rank)

    async def tell(self, held_seconds: Callable[[], float]) -> None:
        while True:
            for rank in self._ranks:
                rank.process.tell(Hold(held_seconds=held_seconds()))
            await asyncio.sleep(_TELL_SECONDS)

    async def watch(self, silence_seconds: float) -> None:
        """Until all have finished. Raises JobFailed for the first that fails."""
        while running := [rank.exit for rank in self._ranks if rank.exit and not rank.exit.done()]:
            await asyncio.wait(running, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            self._raise_own_errors()
            if any(rank.has_failed for rank in self._ranks):
                await asyncio.wait(running, timeout=_BLAME_SECONDS)
                break
            silent = time.monotonic() - self._heard
            if silent > silence_seconds:
                raise JobFailed(
                    f"no rank said anything for {silent:.0f} s{_quote(self._ranks[0].tail)}",
                    where=f"{len(running)} of {len(self._ranks)} ranks still run",
                    remedy="all ranks were ended",
                )
        if failed := [rank for rank in self._ranks if rank.has_failed]:
            raise _job_failed(_culprit(failed, {r.process.rank: r for r in self._ranks}))

    def _raise_own_errors(self) -> None:
        """What on_event raised ends the job, rather than leave it unread."""
        for rank in self._ranks:
            for task in rank.tasks:
                if task.done():
                    task.result()

    async def end(self) -> None:
        for stop, seconds in (("terminate", TERMINATE_SECONDS), ("kill", _KILL_SECONDS)):
            running = [rank for rank in self._ranks if rank.status is None]
            if not running:
                break
            for rank in running:
                getattr(rank.process, stop)()
            await asyncio.wait([rank.exit for rank in running if rank.exit], timeout=seconds)
        readers = [task for rank in self._ranks for task in rank.tasks]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    async def _await_exit(self, rank: _Followed) -> int:
        """Its exit status, once all that it said was read too."""
        status = await rank.process.wait()
        rank.exited_seconds = time.monotonic()
        # A pipe that a process of the user's own keeps open must not keep the job waiting.
        await asyncio.wait(rank.tasks, timeout=_DRAIN_SECONDS)
        return status

    async def _read_output(self, rank: _Followed) -> None:
        async for line in rank.process.output():
            self._heard = time.monotonic()
            try:
                event = parse_rank_event(line)
            except ValidationError:  # the user's model prints
                self._printed(rank, line, is_error=False)
                continue
            if isinstance(event, Finished):
                rank.finished = True
            elif isinstance(event, Failed):
                rank.failure = rank.failure or event
                rank.told_seconds = min(rank.told_seconds, time.monotonic())
            if not isinstance(event, Carried):  # many, and only the last is of interest
                self.events.append(event)
            self._on_event(event)

    async def _read_errors(self, rank: _Followed) -> None:
        async for line in rank.process.errors():
            self._heard = time.monotonic()
            self._printed(rank, line, is_error=True)

    def _printed(self, rank: _Followed, line: bytes, *, is_error: bool) -> None:
        rank.tail.append(line.decode(errors="replace").rstrip())
        self._on_line(rank.process.rank, rank.tail[-1], is_error)


@dataclass(frozen=True)
class _Culprit:
    """The rank that the report names, and who said so if it could not."""

    rank: _Followed
    witness: _Followed | None = None


def _culprit(failed: Sequence[_Followed], ranks: Mapping[int, _Followed]) -> _Culprit:
    """Who ended by itself first; unless all it says is that it lost another, which still runs."""
    first = min(failed, key=_blame)
    lost = first.failure.lost_rank if first.failure else None
    if lost is None or lost not in ranks or ranks[lost].has_failed:
        return _Culprit(first)
    return _Culprit(ranks[lost], witness=first)


def _blame(rank: _Followed) -> tuple[bool, float]:
    """Who was killed failed by itself; of the others, the first to say so, or to go."""
    first = min(rank.exited_seconds, rank.told_seconds)
    return (rank.status is None or rank.status >= 0, first)


def _job_failed(culprit: _Culprit) -> JobFailed:
    rank, failure = culprit.rank, (culprit.witness or culprit.rank).failure
    said = failure.what if failure else ""
    if culprit.witness is not None:
        what = f"{said} (as rank {culprit.witness.process.rank} says)"
    else:
        what = f"rank {rank.process.rank} {_ending(rank.status)}{': ' if said else ''}{said}"
    return JobFailed(
        what + _quote(rank.tail),
        where=rank.process.server,
        remedy=(failure.remedy if failure else "") or "all other ranks were ended",
        rank=rank.process.rank,
    )


def _ending(status: int | None) -> str:
    if status is None:
        return "still runs"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with {status}" if status else "ended with 0 before it had finished"


def _quote(tail: Sequence[str]) -> str:
    return "".join(f"\n    {line}" for line in tail)
