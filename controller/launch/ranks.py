"""Runs all ranks of one job: starts them, collects their events, and names the rank that fails.

Servers are started side by side, and the ranks of one server in their order. A rank that fails
meanwhile, or one that cannot be started, ends the job at once.

Either every rank finishes, or none is left: when a rank fails, when all are silent for too long, or
when the work is cancelled, all ranks are ended, by SIGTERM and then by SIGKILL. In between a script
has as long as torchrun gives it, and its network stays until then. When this process is killed,
ranks go on for as long as they were last told that they may.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from placewire.controller.errors import JobFailed
from placewire.controller.launch.blame import (
    about_those_that_may_save,
    about_those_that_stay,
    all_silent,
    culprit,
    has_not_begun,
    how_ranks_ended,
    job_failed,
    named,
)
from placewire.controller.launch.followed import Followed, event_of
from placewire.controller.launch.launcher import RankProcess, Starter
from placewire.controller.launch.lines import text_of
from placewire.controller.uninterruptible import uninterruptible
from placewire.job.contract.specification import (
    SCRIPT_END_SECONDS,
    SCRIPT_GONE_SECONDS,
    Failed,
    Finished,
    Hold,
    ProgramSpec,
    RankEvent,
    ScriptSpec,
)
from placewire.optimizer.device_names import server_of

SILENCE_SECONDS = 300.0
# Before its first event a rank imports torch, which takes minutes from a file server that is slow,
# and captures its model, which takes a busy machine a minute or two.
START_SECONDS = 600.0
_SAY_LATE_EVERY_SECONDS = 60.0
# A longer time between two looks is a pause of this process, and says nothing about ranks.
_LONGEST_LOOK_SECONDS = 2.0
TERMINATE_SECONDS = 3.0
# A killed rank ends when a processor is free for that.
_KILL_SECONDS = 15.0
# When a rank dies, its peers fail because of it; so much time shows which was first, and why.
_BLAME_SECONDS = 0.5
_DRAIN_SECONDS = 1.0
_MOST_DRAINS = 60
_TELL_SECONDS = 2.0
# A start over SSH is several questions to its server, and a handshake. At most so many servers get
# theirs at once, which is as many as begin at once through a jump host (ssh_proxy.py).
_SERVERS_AT_ONCE = 8
# A wait is so many short ones, of which one alone passes while this process is held up.
_WAITS = 10

OnRankLine = Callable[[int, str, bool], None]


async def run_ranks(
    launcher: Starter,
    specs: Sequence[ProgramSpec],
    on_event: Callable[[RankEvent], None],
    *,
    on_line: OnRankLine = lambda rank, text, is_error: None,
    on_late: Callable[[str], None] = lambda text: None,
    on_gone: Callable[[int], None] = lambda rank: None,
    silence_seconds: float = SILENCE_SECONDS,
    start_seconds: float = START_SECONDS,
    held_seconds: Callable[[], float] | None = None,
) -> None:
    """Returns once every rank finished. on_event: gets each event of each rank, in the order in
    which they come; a job may run for weeks, so that none is kept here.

    on_line: gets each line that a rank printed beside its events: (rank, line, whether on standard
    error). on_late: gets a sentence every minute in which some ranks have not begun. on_gone: gets
    each rank that ends by itself and had not finished. start_seconds: how long a rank may report
    nothing after all were started; silence_seconds: how long all of them may say nothing once they
    have begun. held_seconds: how long from now ranks may run on if this process should be gone;
    they get it with their start, and every two seconds until they ended.

    Raises JobFailed, which names the rank, its server, how it ended and its last lines. No rank is
    left when this function returns, raises or is cancelled; on_late gets a sentence about scripts
    that take time to end, and about ranks that were killed and do not end; the JobFailed tells of
    these, too.
    """
    job = _Job(on_event, on_line, on_gone)
    telling: asyncio.Task[None] | None = None
    failure: JobFailed | None = None
    try:
        if held_seconds is not None:  # The first ranks are told while the others start.
            telling = asyncio.create_task(job.tell(held_seconds))
        job.start(launcher, specs, held_seconds)
        await job.watch(silence_seconds, start_seconds, on_late)
    except JobFailed as error:
        failure = error
        raise
    finally:
        try:
            await uninterruptible(job.end(on_late, failure))
        finally:
            if telling is not None:
                telling.cancel()


class _Job:
    def __init__(
        self,
        on_event: Callable[[RankEvent], None],
        on_line: OnRankLine,
        on_gone: Callable[[int], None],
    ) -> None:
        self._on_event, self._on_line, self._on_gone = on_event, on_line, on_gone
        self._ranks: list[Followed] = []  # by their number
        self._starting: list[asyncio.Task[None]] = []
        self._blamed: list[Followed] = []
        self._heard = time.monotonic()
        # Of all ranks together one line is handled at a time, and the event loop has its turn
        # before the next: ranks that print fast delay one another, and nothing else.
        self._turn = asyncio.Lock()

    def start(
        self,
        launcher: Starter,
        specs: Sequence[ProgramSpec],
        held_seconds: Callable[[], float] | None,
    ) -> None:
        """Begins to start them; `watch` raises what hinders a start, and `end` ends all starts."""
        of_servers: dict[str, list[ProgramSpec]] = {}
        for spec in specs:
            of_servers.setdefault(server_of(spec.device), []).append(spec)
        turns = asyncio.Semaphore(_SERVERS_AT_ONCE)

        async def start_in_order(own: Sequence[ProgramSpec]) -> None:
            async with turns:
                for spec in own:
                    # This process may be killed before it tells the rank.
                    first = {} if held_seconds is None else {"held_seconds": held_seconds()}
                    self.follow(await launcher.start(spec.model_copy(update=first)), spec)

        self._starting = [asyncio.create_task(start_in_order(own)) for own in of_servers.values()]

    def follow(self, process: RankProcess, spec: ProgramSpec) -> None:
        rank = Followed(process, spec)
        reading = (self._read_output(rank), self._read_errors(rank))
        rank.readers = [asyncio.create_task(each) for each in reading]
        rank.exit = asyncio.create_task(self._await_exit(rank))
        self._ranks.append(rank)
        self._ranks.sort(key=lambda one: one.spec.rank)

    async def tell(self, held_seconds: Callable[[], float]) -> None:
        while True:
            for rank in self._ranks:
                rank.process.tell(Hold(held_seconds=held_seconds()))
            await asyncio.sleep(_TELL_SECONDS)

    async def watch(
        self, silence_seconds: float, start_seconds: float, on_late: Callable[[str], None]
    ) -> None:
        """Returns when all have finished. Raises JobFailed, what hindered a start, and whatever
        on_event raised."""
        looked, say_late = time.monotonic(), _SAY_LATE_EVERY_SECONDS
        while awaited := self._awaited():
            await asyncio.wait(awaited, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            for task in (*self._readers(), *self._starting):
                if task.done():
                    task.result()
            if any(rank.has_failed or rank.ends_itself for rank in self._ranks):
                await _wait([rank.exit for rank in self._ranks], _BLAME_SECONDS)
                break
            now = time.monotonic()
            passed, looked = min(now - looked, _LONGEST_LOOK_SECONDS), now
            if self._unstarted():
                continue  # Ranks may wait for those that are not there yet.
            if late := [r for r in self._ranks if not r.has_begun and r.status is None]:
                for rank in late:
                    rank.starting_seconds += passed
                latest = max(late, key=lambda rank: rank.starting_seconds)
                if latest.starting_seconds > start_seconds:
                    raise has_not_begun(latest, late)
                if latest.starting_seconds > say_late:
                    say_late += _SAY_LATE_EVERY_SECONDS
                    on_late(f"{named(late)} not begun after {latest.starting_seconds:.0f} s")
                continue
            silent = now - self._heard
            if silent > silence_seconds:
                raise all_silent(self._ranks, len(self._running()), silent)
        if failed := [rank for rank in self._ranks if rank.has_failed or rank.ends_itself]:
            rank, witness = culprit(failed, {r.process.rank: r for r in self._ranks})
            self._blamed = [rank] if witness is None else [rank, witness]
            raise job_failed(rank, witness)

    async def end(self, on_late: Callable[[str], None], failure: JobFailed | None) -> None:
        for start in self._starting:
            start.cancel()
        # A rank that fails from here on fails because it is ended.
        failed = [
            rank
            for rank in self._ranks
            if rank.has_failed or rank.failure or (rank.exited_seconds and not rank.finished)
        ]
        there = {rank.spec.rank for rank in self._ranks}
        ending = self._end_these(self._running(), on_late)
        await asyncio.gather(ending, self._end_late_ones(there, on_late))
        for reader in self._readers():
            reader.cancel()
        await asyncio.gather(*self._readers(), return_exceptions=True)
        for rank in self._ranks:
            rank.process.close()
        if stay := [rank for rank in self._ranks if not rank.exited_seconds]:
            on_late(about_those_that_stay(stay))
        if failure is not None:
            if any(isinstance(rank.spec, ScriptSpec) for rank in self._blamed):
                # It had told why, and not yet ended.
                failure.what = job_failed(*self._blamed).what
            told = failure.remedy, how_ranks_ended(self._ranks, self._blamed, failed, stay)
            failure.remedy = "; ".join(filter(None, told))

    async def _end_late_ones(self, there: Collection[int], on_late: Callable[[str], None]) -> None:
        """Ends the ranks whose start came to its end all the same; there: those started before. A
        start on a server that is silent is over only when its questions are, and no other rank runs
        on until then."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        late = [rank for rank in self._running() if rank.spec.rank not in there]
        await self._end_these(late, on_late)

    async def _end_these(self, ranks: Sequence[Followed], on_late: Callable[[str], None]) -> None:
        for rank in ranks:
            # What ends by itself has asked its processes to end, and must not ask them again.
            if not (rank.ends_itself or rank.was_ended):
                rank.was_ended = True
                rank.process.terminate()
        running = await _left_of(ranks, TERMINATE_SECONDS)
        if scripts := [rank for rank in running if isinstance(rank.spec, ScriptSpec)]:
            on_late(about_those_that_may_save(scripts, SCRIPT_END_SECONDS))
            running = await _left_of(running, SCRIPT_GONE_SECONDS - TERMINATE_SECONDS)
        for rank in running:
            rank.process.kill()
        await _left_of(running, _KILL_SECONDS)

    def _awaited(self) -> list[asyncio.Task[Any]]:
        return [*self._unstarted(), *(rank.exit for rank in self._running())]

    def _unstarted(self) -> list[asyncio.Task[None]]:
        return [start for start in self._starting if not start.done()]

    def _running(self) -> list[Followed]:
        return [rank for rank in self._ranks if rank.status is None]

    def _readers(self) -> list[asyncio.Task[None]]:
        return [reader for rank in self._ranks for reader in rank.readers]

    async def _await_exit(self, rank: Followed) -> int:
        """Returns the exit status, once all that the rank printed was read."""
        status = await rank.process.wait()
        rank.exited_seconds = time.monotonic()
        # What it printed last may be behind much else. But a process of the user's own may keep a
        # pipe open, and print without end; the job must not wait for it.
        read = -1
        for _ in range(_MOST_DRAINS):
            if read == rank.lines or rank.readers[0].done():
                break
            read = rank.lines
            await _wait(rank.readers, _DRAIN_SECONDS)
        if not (rank.was_ended or rank.finished):
            self._on_gone(rank.process.rank)
        return status

    async def _read_output(self, rank: Followed) -> None:
        async for line in rank.process.output():
            async with self._turn:
                self._take_output(rank, line)

    def _take_output(self, rank: Followed, line: bytes) -> None:
        rank.lines += 1
        self._heard = time.monotonic()
        event = event_of(rank.spec, line)
        if event is None or not rank.may_say(event, len(line)):  # the user's model prints
            self._printed(rank, line, is_error=False)
            return
        rank.has_begun = True
        if isinstance(event, Finished):
            rank.finished = True
        elif isinstance(event, Failed):
            rank.failure = rank.failure or event
            rank.failed_seconds = min(rank.failed_seconds, time.monotonic())
        self._on_event(event)

    async def _read_errors(self, rank: Followed) -> None:
        async for line in rank.process.errors():
            async with self._turn:
                self._heard = time.monotonic()
                self._printed(rank, line, is_error=True)

    def _printed(self, rank: Followed, line: bytes, *, is_error: bool) -> None:
        rank.tail.append(text_of(line))
        self._on_line(rank.process.rank, rank.tail[-1], is_error)


async def _left_of(ranks: Sequence[Followed], seconds: float) -> list[Followed]:
    """Waits until none of these runs, or for so many seconds; returns those that still run."""
    if running := [rank.exit for rank in ranks if rank.status is None]:
        await asyncio.wait(running, timeout=seconds)
    return [rank for rank in ranks if rank.status is None]


async def _wait(tasks: Sequence[asyncio.Task[Any]], seconds: float) -> None:
    """Returns when all are done, or after so many seconds. Where this process is held up meanwhile,
    there is time left to see what came: a rank's last words, or another rank's end."""
    for _ in range(_WAITS):
        _, running = await asyncio.wait(tasks, timeout=seconds / _WAITS)
        if not running:
            return
