"""A line that a rank prints is its report only where the rank can say it; else it is its text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from placewire.controller.launch.ranks import run_ranks
from placewire.job.contract.specification import Hold, ProgramSpec, RailInterface, RankEvent

RAILS = (RailInterface(rail="a", interface="pw-nic0", address="10.7.0.1"),)
DONE = {"event": "finished", "rank": 0, "traffic": [], "peak_memory_bytes": 1}
CARRIED = {"event": "carried", "rank": 0, "seconds": 1.0, "sent_bytes": {"a": 5}}
SENT = {"destination": "s2/0", "rail": "a", "bytes": 5}


class Printed:
    """A rank that printed these lines and ended well."""

    rank, server = 0, "s1"

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines

    async def start(self, spec: ProgramSpec) -> Printed:
        return self

    async def output(self) -> AsyncIterator[bytes]:
        for line in self.lines:
            yield line

    async def errors(self) -> AsyncIterator[bytes]:
        for line in list[bytes]():
            yield line

    async def wait(self) -> int:
        await asyncio.sleep(0)
        return 0

    def tell(self, hold: Hold) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


async def heard(*told: Any) -> tuple[list[RankEvent], list[str]]:
    """(the events, the text) of a rank 0 on rail `a` that prints these and then finishes."""
    lines = [json.dumps(one).encode() for one in (*told, DONE)]
    spec = ProgramSpec(
        rank=0, world_size=1, device="s1/0", master_address="127.0.0.1", master_tcp_port=29400,
        rail_interfaces=RAILS,
    )  # fmt: skip
    events, text = list[RankEvent](), list[str]()
    await run_ranks(
        Printed(lines), [spec], events.append, on_line=lambda rank, line, error: text.append(line)
    )
    return events, text


async def test_what_a_rank_says_of_itself_is_heard() -> None:
    within = {**SENT, "destination": "s1/1", "rail": ""}
    events, text = await heard(CARRIED, {**DONE, "traffic": [SENT, within]})
    assert [event.event for event in events] == ["carried", "finished", "finished"] and not text


@pytest.mark.parametrize(
    "line",
    [
        {**CARRIED, "rank": 7},
        {**DONE, "rank": 9},
        {"event": "failed", "rank": 1, "what": "it was another"},
        {**CARRIED, "sent_bytes": {"zz": 5}},
        {**DONE, "traffic": [{**SENT, "rail": "zz"}]},
        {**CARRIED, "sent_bytes": {"a": 10**400}},
        {"event": "step", "rank": 0, "step": 0, "seconds": 1e308},
    ],
)
async def test_what_a_rank_cannot_say_is_text_that_it_prints(line: Any) -> None:
    events, text = await heard(line)
    assert [event.event for event in events] == ["finished"]
    assert text == [json.dumps(line)]
