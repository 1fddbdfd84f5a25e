"""Runs all ranks of one job: starts them, collects their events, and names the rank that fails.

Either every rank finishes, or none is left: when a rank fails, when all are silent for too long, or
when the work is cancelled, all ranks are ended, by SIGTERM and then by SIGKILL. When this process
is killed, ranks go on for as long as they were last told that they may.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from placewire.controller.errors import JobFailed
from placewire.controller.launch.launcher import RankProcess, Starter
from placewire.controller.launch.lines import text_of
from placewire.controller.launch.programs import TAIL_LINES
from placewire.controller.uninterruptible import uninterruptible
from placewire.job.contract.signal_name import signal_name
from placewire.job.contract.specification import (
    Carried,
    Failed,
    Finished,
    Hold,
    ProgramSpec,
    RankEvent,
    RankSpec,
    Resumed,
    Saved,
    StepDone,
    parse_rank_event,
)

# Before its first event a rank captures its model, which takes a busy machine a minute or two.
SILENCE_SECONDS = 300.0
TERMINATE_SECONDS = 3.0
# A killed rank ends when a processor is free for that.
_KILL_SECONDS = 15.0
# When a rank dies, its peers fail because of it; so much time shows which was first, and why.
_BLAME_SECONDS = 0.5
_DRAIN_SECONDS = 1.0
_TELL_SECONDS = 2.0
# Beside its steps: that it started, resumed, failed, finished; notes; and measured paths.
_OTHER_EVENTS = 100
# Of what a rank says it failed by.
_LONGEST_FAILURE = 10_000
# A wait is so many short ones, of which one alone passes while this process is held up.
_WAITS = 10

OnRankLine = Callable[[int, str, bool], None]


@dataclass
class _Followed:
    """tail: the rank's last lines beside its events. lines: how many lines of it were read.
    readers: tasks that read what it prints, its output before its errors. next_step,
    checkpoint_step, others: the next step that it may report, the last that is in a checkpoint, and
    how many other events it reported.
    exited_seconds, failed_seconds: when it ended, and when it reported a failure (monotonic)."""

    process: RankProcess
    spec: ProgramSpec
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    lines: int = 0
    finished: bool = False
    next_step: int | None = None
    checkpoint_step: int = -1
    others: int = 0
    failure: Failed | None = None
    readers: list[asyncio.Task[None]] = field(default_factory=list)
    exit: asyncio.Task[int] = field(init=False)
    exited_seconds: float = 0.0
    failed_seconds: float = math.inf

    @property
    def status(self) -> int | None:
        """The exit status; None while the rank runs."""
        return self.exit.result() if self.exit.done() else None

    def may_say(self, event: RankEvent) -> bool:
        """Whether this comes next. What a rank reports is bounded by what it was asked to do: its
        steps come one after another, and each of the others belongs to one of them."""
        steps = self.spec.steps if isinstance(self.spec, RankSpec) else 0
        if isinstance(event, StepDone):
            if event.step >= steps or self.next_step not in (None, event.step):
                return False
            self.next_step = event.step + 1
        elif isinstance(event, Resumed | Saved):
            if event.step > steps or event.step <= self.checkpoint_step:
                return False
            self.checkpoint_step = event.step
        elif not isinstance(event, Carried):
            self.others += 1
            return self.others <= _OTHER_EVENTS + steps
        return True

    @property
    def has_failed(self) -> bool:
        return self.status is not None and (self.status != 0 or not self.finished)


async def run_ranks(
    launcher: Starter,
    specs: Sequence[ProgramSpec],
    on_event: Callable[[RankEvent], None],
    *,
    on_line: OnRankLine = lambda rank, text, is_error: None,
    silence_seconds: float = SILENCE_SECONDS,
    held_seconds: Callable[[], float] | None = None,
) -> list[RankEvent]:
    """Returns all events of all ranks, in the order in which they came, once every rank finished.

    on_line: gets each line that a rank printed beside its events: (rank, line, whether on standard
    error). held_seconds: how long from now ranks may run on if this process should be gone; they
    get it with their start, and every two seconds.

    Raises JobFailed, which names the rank, its server, how it ended and its last lines. No rank is
    left when this function returns, raises or is cancelled.
    """
    job = _Job(on_event, on_line)
    telling: asyncio.Task[None] | None = None
    try:
        if held_seconds is not None:  # The first ranks are told while the others start.
            telling = asyncio.create_task(job.tell(held_seconds))
        for spec in specs:
            # This process may be killed before it tells the rank.
            first = {} if held_seconds is None else {"held_seconds": held_seconds()}
            job.follow(await launcher.start(spec.model_copy(update=first)), spec)
        await job.watch(silence_seconds)
    finally:
        if telling is not None:
            telling.cancel()
        await uninterruptible(job.end())
    return job.events


class _Job:
    def __init__(self, on_event: Callable[[RankEvent], None], on_line: OnRankLine) -> None:
        self.events: list[RankEvent] = []
        self._on_event, self._on_line = on_event, on_line
        self._ranks: list[_Followed] = []
        self._heard = time.monotonic()
        # Of all ranks together one line is handled at a time, and the event loop has its turn
        # before the next: ranks that print fast delay one another, and nothing else.
        self._turn = asyncio.Lock()

    def follow(self, process: RankProcess, spec: ProgramSpec) -> None:
        rank = _Followed(process, spec)
        reading = (self._read_output(rank), self._read_errors(rank))
        rank.readers = [asyncio.create_task(each) for each in reading]
        rank.exit = asyncio.create_task(self._await_exit(rank))
        self._ranks.append(rank)

    async def tell(self, held_seconds: Callable[[], float]) -> None:
        while True:
            for rank in self._ranks:
                rank.process.tell(Hold(held_seconds=held_seconds()))
            await asyncio.sleep(_TELL_SECONDS)

    async def watch(self, silence_seconds: float) -> None:
        """Returns when all have finished. Raises JobFailed, and whatever on_event raised."""
        while running := [rank.exit for rank in self._ranks if not rank.exit.done()]:
            await asyncio.wait(running, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            for reader in self._readers():
                if reader.done():
                    reader.result()
            if any(rank.has_failed for rank in self._ranks):
                await _wait(running, _BLAME_SECONDS)
                break
            silent = time.monotonic() - self._heard
            if silent > silence_seconds:
                raise JobFailed(
                    f"no rank said anything for {silent:.0f} s{_quote(self._ranks[0].tail)}",
                    where=f"{len(running)} of {len(self._ranks)} ranks still run",
                    remedy="all ranks were ended",
                )
        if failed := [rank for rank in self._ranks if rank.has_failed]:
            raise _job_failed(*_culprit(failed, {r.process.rank: r for r in self._ranks}))

    async def end(self) -> None:
        for stop, seconds in (("terminate", TERMINATE_SECONDS), ("kill", _KILL_SECONDS)):
            running = [rank for rank in self._ranks if rank.status is None]
            if not running:
                break
            for rank in running:
                getattr(rank.process, stop)()
            await asyncio.wait([rank.exit for rank in running], timeout=seconds)
        for reader in self._readers():
            reader.cancel()
        await asyncio.gather(*self._readers(), return_exceptions=True)

    def _readers(self) -> list[asyncio.Task[None]]:
        return [reader for rank in self._ranks for reader in rank.readers]

    async def _await_exit(self, rank: _Followed) -> int:
        """Returns the exit status, once all that the rank printed was read."""
        status = await rank.process.wait()
        rank.exited_seconds = time.monotonic()
        # What it printed last may be behind much else. But a process of the user's own may keep a
        # pipe open, and print errors without end; the job must not wait for it.
        read = -1
        while read != rank.lines and not rank.readers[0].done():
            read = rank.lines
            await _wait(rank.readers, _DRAIN_SECONDS)
        return status

    async def _read_output(self, rank: _Followed) -> None:
        async for line in rank.process.output():
            async with self._turn:
                self._take_output(rank, line)

    def _take_output(self, rank: _Followed, line: bytes) -> None:
        rank.lines += 1
        self._heard = time.monotonic()
        event = _event_of(rank.spec, line)
        if event is None or not rank.may_say(event):  # the user's model prints
            self._printed(rank, line, is_error=False)
            return
        if isinstance(event, Finished):
            rank.finished = True
        elif isinstance(event, Failed):
            rank.failure = rank.failure or event
            rank.failed_seconds = min(rank.failed_seconds, time.monotonic())
        if not isinstance(event, Carried):  # there are many, and only the last is of interest
            self.events.append(event)
        self._on_event(event)

    async def _read_errors(self, rank: _Followed) -> None:
        async for line in rank.process.errors():
            async with self._turn:
                rank.lines += 1
                self._heard = time.monotonic()
                self._printed(rank, line, is_error=True)

    def _printed(self, rank: _Followed, line: bytes, *, is_error: bool) -> None:
        rank.tail.append(text_of(line))
        self._on_line(rank.process.rank, rank.tail[-1], is_error)


async def _wait(tasks: Sequence[asyncio.Task[Any]], seconds: float) -> None:
    """Returns when all are done, or after so many seconds. Where this process is held up meanwhile,
    there is time left to see what came: a rank's last words, or another rank's end."""
    for _ in range(_WAITS):
        _, running = await asyncio.wait(tasks, timeout=seconds / _WAITS)
        if not running:
            return


def _event_of(spec: ProgramSpec, line: bytes) -> RankEvent | None:
    """None where the line is no event that this program can report: of itself, and of rails that it
    was given."""
    try:
        event = parse_rank_event(line)
    except ValidationError:
        return None
    named: set[str] = set()
    if isinstance(event, Carried):
        named = set(event.sent_bytes)
    elif isinstance(event, Finished):
        # Between devices of one server, what is sent goes over no rail.
        named = {one.rail for one in event.traffic} - {""}
    given = {one.rail for one in spec.rail_interfaces}
    return event if event.rank == spec.rank and named <= given else None


def _culprit(
    failed: Sequence[_Followed], ranks: Mapping[int | None, _Followed]
) -> tuple[_Followed, _Followed | None]:
    """Returns the rank to blame, and the rank that says so where that is another.

    A rank that was killed is to blame, else the first that reported a failure or ended. But where
    that rank only reports that it lost another one, which still runs, that other one is to blame.
    """

    def blame(rank: _Followed) -> tuple[bool, float]:
        was_killed = rank.status is not None and rank.status < 0
        return (not was_killed, min(rank.exited_seconds, rank.failed_seconds))

    first = min(failed, key=blame)
    lost = ranks.get(first.failure.lost_rank) if first.failure else None
    return (first, None) if lost is None or lost.has_failed else (lost, first)


def _job_failed(rank: _Followed, witness: _Followed | None) -> JobFailed:
    failure = (witness or rank).failure
    said = failure.what[:_LONGEST_FAILURE] if failure else ""
    if witness is not None:
        what = f"{said} (as rank {witness.process.rank} says)"
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
        return f"was killed by {signal_name(-status)}"
    return f"ended with {status}" if status else "ended with 0 before it had finished"


def _quote(tail: Sequence[str]) -> str:
    return "".join(f"\n    {line}" for line in tail)
