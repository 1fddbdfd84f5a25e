"""Servers are started side by side, and whoever fails meanwhile is told at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

import placewire.controller.launch.ranks as ranks_module
from placewire.controller.errors import JobFailed
from placewire.controller.launch.ranks import run_ranks
from placewire.job.contract.specification import ProgramSpec, RankEvent
from placewire.optimizer.device_names import server_of
from tests.controller.launch.rank_programs import on_servers
from tests.controller.launch.test_blame import FAILS, FINISHES, RUNS, InMemory

LONGEST_SECONDS = 120.0


class Starter:
    """Starts a rank once that may start. does: what ranks do, by number; others run. may_start:
    what the start of a rank waits for, by number."""

    def __init__(self, does: dict[int, str], may_start: dict[int, asyncio.Event]) -> None:
        self.does, self.may_start = does, may_start
        self.begun, self.started = list[int](), dict[int, InMemory]()
        self.given_up, self.at_once, self.most_at_once = list[int](), 0, 0

    async def start(self, spec: ProgramSpec) -> InMemory:
        self.begun.append(spec.rank)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if (may := self.may_start.get(spec.rank)) is not None:
                await may.wait()
            return self.made(spec)
        except asyncio.CancelledError:
            self.given_up.append(spec.rank)
            raise
        finally:
            self.at_once -= 1

    def made(self, spec: ProgramSpec) -> InMemory:
        does = self.does.get(spec.rank, RUNS)
        self.started[spec.rank] = InMemory(spec.rank, does)
        return self.started[spec.rank]


async def test_a_rank_that_fails_is_told_while_others_still_start() -> None:
    starter = Starter({0: FAILS}, {1: asyncio.Event()})
    with pytest.raises(JobFailed, match="rank 0 ended with 7"):
        async with asyncio.timeout(LONGEST_SECONDS):
            await run_ranks(starter, on_servers(2), lambda event: None)
    assert starter.given_up == [1]


async def test_ranks_of_one_server_start_in_order_and_servers_side_by_side() -> None:
    """Each server's second rank needs that all servers have started their first."""
    firsts, servers = asyncio.Event(), 3
    starter = Starter(dict.fromkeys(range(6), FINISHES), dict.fromkeys((1, 3, 5), firsts))

    async def all_firsts() -> None:
        while len(starter.started) < servers:
            await asyncio.sleep(0.01)
        assert starter.begun == [0, 1, 2, 3, 4, 5], "in each server's order, and by server"
        firsts.set()

    events, telling = list[RankEvent](), asyncio.create_task(all_firsts())
    async with asyncio.timeout(LONGEST_SECONDS):
        await run_ranks(starter, on_servers(servers, 2), events.append)
        await telling
    assert [event.event for event in events].count("finished") == 6


async def test_no_more_servers_start_at_once_than_a_jump_host_lets_in() -> None:
    go = asyncio.Event()
    starter = Starter(dict.fromkeys(range(20), FINISHES), dict.fromkeys(range(20), go))

    async def let_go() -> None:
        while len(starter.begun) < 8:
            await asyncio.sleep(0.01)
        for _ in range(10):
            await asyncio.sleep(0)
        go.set()

    going = asyncio.create_task(let_go())
    async with asyncio.timeout(LONGEST_SECONDS):
        await run_ranks(starter, on_servers(20), lambda event: None)
        await going
    assert starter.most_at_once == 8 and starter.begun == list(range(20))


async def test_a_start_that_fails_ends_those_that_run_and_the_other_starts() -> None:
    class Lacks(Starter):
        def made(self, spec: ProgramSpec) -> InMemory:
            if spec.rank == 1:
                raise JobFailed(
                    "no such interpreter", where=server_of(spec.device), remedy="get it"
                )
            return super().made(spec)

    later = asyncio.Event()
    starter = Lacks({}, {1: later, 2: asyncio.Event()})

    def on_event(event: RankEvent) -> None:
        later.set()

    with pytest.raises(JobFailed, match="no such interpreter") as failure:
        async with asyncio.timeout(LONGEST_SECONDS):
            await run_ranks(starter, on_servers(3), on_event)
    assert failure.value.remedy == "get it; rank 0 (s1) was ended"
    assert starter.given_up == [2] and starter.started[0].told_to_end.is_set()


async def test_a_start_that_comes_to_its_end_though_it_is_given_up_is_ended_too() -> None:
    class Late(Starter):
        async def start(self, spec: ProgramSpec) -> InMemory:
            try:
                return await super().start(spec)
            except asyncio.CancelledError:
                return self.made(spec)

    starter = Late({0: FAILS}, {1: asyncio.Event()})
    with pytest.raises(JobFailed, match="rank 0 ended with 7") as failure:
        async with asyncio.timeout(LONGEST_SECONDS):
            await run_ranks(starter, on_servers(2), lambda event: None)
    assert starter.started[1].told_to_end.is_set()
    assert failure.value.remedy == "rank 1 (s2) was ended"


async def test_ranks_are_ended_while_a_start_on_a_silent_server_cannot_be_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks_module, "TERMINATE_SECONDS", 0.01)
    killed = asyncio.Event()

    class Stubborn(InMemory):
        def terminate(self) -> None: ...

        def kill(self) -> None:
            self.told_to_end.set()
            killed.set()

    class Silent(Starter):
        async def start(self, spec: ProgramSpec) -> InMemory:
            try:
                return await super().start(spec)
            except asyncio.CancelledError:
                async with asyncio.timeout(10.0):
                    await killed.wait()
                raise

        def made(self, spec: ProgramSpec) -> InMemory:
            return Stubborn(spec.rank, RUNS) if spec.rank == 1 else super().made(spec)

    with pytest.raises(JobFailed, match="rank 0 ended with 7") as failure:
        async with asyncio.timeout(LONGEST_SECONDS):
            await run_ranks(
                Silent({0: FAILS}, {2: asyncio.Event()}), on_servers(3), lambda event: None
            )
    assert killed.is_set() and failure.value.remedy == "rank 1 (s2) was ended"


async def test_an_interrupt_while_ranks_start_leaves_none_and_no_start() -> None:
    starter = Starter({}, {1: asyncio.Event(), 2: asyncio.Event()})
    work = asyncio.create_task(run_ranks(starter, on_servers(3), lambda event: None))
    async with asyncio.timeout(LONGEST_SECONDS):
        while len(starter.begun) < 3:
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.wait([work])
    assert work.cancelled() and sorted(starter.given_up) == [1, 2]
    assert starter.started[0].told_to_end.is_set() and not starter.at_once


async def test_who_waits_for_ranks_that_are_not_started_yet_is_not_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed_seconds, looks = [0.0], [0]
    all_there = asyncio.Event()

    def monotonic() -> float:
        looks[0] += 1
        return time.monotonic() + passed_seconds[0]

    monkeypatch.setattr(ranks_module, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(ranks_module, "_LONGEST_LOOK_SECONDS", 1e9)

    class Waits(InMemory):
        async def output(self) -> AsyncIterator[bytes]:
            await all_there.wait()
            async for line in super().output():
                yield line

        async def wait(self) -> int:
            await all_there.wait()
            return await super().wait()

    class Slow(Starter):
        def made(self, spec: ProgramSpec) -> InMemory:
            return Waits(spec.rank, FINISHES)

        async def start(self, spec: ProgramSpec) -> InMemory:
            if spec.rank == 1:
                passed_seconds[0] = 10_000.0
                until = looks[0] + 2
                while looks[0] < until:
                    await asyncio.sleep(0.01)
                all_there.set()
            return await super().start(spec)

    events = list[RankEvent]()
    async with asyncio.timeout(LONGEST_SECONDS):
        await run_ranks(Slow({}, {}), on_servers(2), events.append, start_seconds=5_000.0)
    assert [event.event for event in events].count("finished") == 2
