"""A job's failure says which other ranks failed, too, and which were ended because of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from placewire.controller.errors import JobFailed
from placewire.controller.launch.ranks import run_ranks
from placewire.job.contract.specification import Hold, ProgramSpec
from tests.controller.launch.rank_programs import on_servers

FAILS, FINISHES, RUNS = "fails", "finishes", "runs"
SAYS_WHY_AND_HANGS = "says why it fails, and hangs"
# Something that it started still holds what it prints to.
FAILS_AND_LEAVES_A_CHILD = "fails, and leaves a child"
LOSES_RANK_0 = "says that rank 0 is lost, and fails"


class InMemory:
    """A rank that begins and then does this. What still runs ends when it is told to."""

    def __init__(self, rank: int, does: str) -> None:
        self.rank, self.server, self.does = rank, f"s{rank + 1}", does
        self.told_to_end = asyncio.Event()

    async def output(self) -> AsyncIterator[bytes]:
        yield self._event(event="step", step=0, seconds=0.5)
        if self.does == FINISHES:
            yield self._event(event="finished", traffic=[], peak_memory_bytes=1)
        elif self.does == SAYS_WHY_AND_HANGS:
            yield self._event(event="failed", what="no memory", remedy="a smaller batch")
        elif self.does == LOSES_RANK_0:
            yield self._event(event="failed", what="rank 0 is lost", lost_rank=0, remedy="look")
        elif self.does == FAILS_AND_LEAVES_A_CHILD:
            await self.told_to_end.wait()

    async def errors(self) -> AsyncIterator[bytes]:
        for line in list[bytes]():
            yield line

    async def wait(self) -> int:
        if self.does == FINISHES:
            return 0
        if self.does in (FAILS, FAILS_AND_LEAVES_A_CHILD, LOSES_RANK_0):
            return 7
        await self.told_to_end.wait()
        return -15

    def tell(self, hold: Hold) -> None: ...

    def terminate(self) -> None:
        self.told_to_end.set()

    def kill(self) -> None: ...

    def close(self) -> None: ...

    def _event(self, **event: object) -> bytes:
        return json.dumps({"rank": self.rank, **event}).encode()


class Starter:
    """Starts ranks that do this; a rank beyond them cannot be started."""

    def __init__(self, *does: str) -> None:
        self.does = does

    async def start(self, spec: ProgramSpec) -> InMemory:
        if spec.rank >= len(self.does):
            raise JobFailed("no such interpreter", where=f"s{spec.rank + 1}", remedy="install it")
        return InMemory(spec.rank, self.does[spec.rank])


@pytest.mark.parametrize(
    "does, remedy",
    [
        ([FAILS], ""),
        ([FAILS, RUNS, RUNS], "ranks 1 (s2), 2 (s3) were ended"),
        ([FAILS, FAILS, FAILS], "ranks 1 (s2), 2 (s3) also failed, perhaps because of it"),
        (
            [FINISHES, FAILS, FAILS, RUNS],
            "rank 2 (s3) also failed, perhaps because of it; rank 3 (s4) was ended",
        ),
        (
            [FAILS, SAYS_WHY_AND_HANGS, RUNS],
            "rank 1 (s2) also failed, perhaps because of it; rank 2 (s3) was ended",
        ),
        (
            [FAILS, FAILS_AND_LEAVES_A_CHILD],
            "rank 1 (s2) also failed, perhaps because of it",
        ),
        ([FAILS, *[RUNS] * 31], "ranks 1 (s2), 2 (s3), 3 (s4) … 31 (s32) were ended"),
    ],
)
async def test_ranks_that_failed_are_told_apart_from_those_that_were_ended(
    does: list[str], remedy: str
) -> None:
    with pytest.raises(JobFailed, match=r"rank [01] ended with 7") as failure:
        await run_ranks(Starter(*does), on_servers(len(does)), lambda event: None)
    assert failure.value.remedy == remedy


async def test_a_rank_that_says_whom_it_lost_is_named_once() -> None:
    with pytest.raises(JobFailed, match=r"rank 0 is lost \(as rank 1 says\)") as failure:
        await run_ranks(Starter(RUNS, LOSES_RANK_0, RUNS), on_servers(3), lambda event: None)
    assert failure.value.remedy == "look; ranks 0 (s1), 2 (s3) were ended"


@pytest.mark.parametrize(
    "ranks, remedy", [(1, "rank 0 (s1) was ended"), (2, "ranks 0 (s1), 1 (s2) were ended")]
)
async def test_ranks_that_were_silent_too_long_are_ended(ranks: int, remedy: str) -> None:
    does = [RUNS] * ranks
    with pytest.raises(JobFailed, match="no rank said anything") as failure:
        await run_ranks(Starter(*does), on_servers(ranks), lambda event: None, silence_seconds=0.1)
    assert failure.value.remedy.endswith(f"; {remedy}")


async def test_the_ranks_that_had_started_are_ended_where_another_cannot_start() -> None:
    with pytest.raises(JobFailed, match="no such interpreter") as failure:
        await run_ranks(Starter(RUNS), on_servers(2), lambda event: None)
    assert failure.value.remedy == "install it; rank 0 (s1) was ended"
