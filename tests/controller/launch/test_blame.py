"""A job's failure says which ranks failed by themselves, and which were ended because of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from placewire.controller.errors import JobFailed
from placewire.controller.launch.ranks import run_ranks
from placewire.job.contract.specification import Hold, ProgramSpec
from tests.controller.launch.rank_programs import specs

FAILS, FINISHES, RUNS = "fails", "finishes", "runs"
SAYS_WHY_AND_HANGS = "says why it fails, and hangs"


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

    async def errors(self) -> AsyncIterator[bytes]:
        for line in list[bytes]():
            yield line

    async def wait(self) -> int:
        if self.does in (FAILS, FINISHES):
            return 7 if self.does == FAILS else 0
        await self.told_to_end.wait()
        return -15

    def tell(self, hold: Hold) -> None: ...

    def terminate(self) -> None:
        self.told_to_end.set()

    def kill(self) -> None: ...

    def _event(self, **event: object) -> bytes:
        return json.dumps({"rank": self.rank, **event}).encode()


class Starter:
    def __init__(self, *does: str) -> None:
        self.does = does

    async def start(self, spec: ProgramSpec) -> InMemory:
        return InMemory(spec.rank, self.does[spec.rank])


@pytest.mark.parametrize(
    "does, remedy",
    [
        ([FAILS], ""),
        ([FAILS, RUNS, RUNS], "rank 0 (s1) failed; ranks 1 (s2), 2 (s3) were ended"),
        ([FAILS, FAILS, FAILS], "ranks 0 (s1), 1 (s2), 2 (s3) failed"),
        (
            [FINISHES, FAILS, FAILS, RUNS],
            "ranks 1 (s2), 2 (s3) failed; rank 3 (s4) was ended",
        ),
        (
            [FAILS, SAYS_WHY_AND_HANGS, RUNS],
            "ranks 0 (s1), 1 (s2) failed; rank 2 (s3) was ended",
        ),
        (
            [FAILS, *[RUNS] * 31],
            "rank 0 (s1) failed; ranks 1 (s2), 2 (s3), 3 (s4) … 31 (s32) were ended",
        ),
    ],
)
async def test_ranks_that_failed_are_told_apart_from_those_that_were_ended(
    does: list[str], remedy: str
) -> None:
    with pytest.raises(JobFailed, match=r"rank [01] ended with 7") as failure:
        await run_ranks(Starter(*does), specs(len(does)), lambda event: None)
    assert failure.value.remedy == remedy


async def test_ranks_that_were_silent_too_long_are_ended() -> None:
    with pytest.raises(JobFailed, match="no rank said anything") as failure:
        await run_ranks(Starter(RUNS, RUNS), specs(2), lambda event: None, silence_seconds=0.1)
    assert failure.value.remedy == "ranks 0 (s1), 1 (s2) were ended"
