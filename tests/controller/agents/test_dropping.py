"""Cuts agents' connections again and again while changes are applied to them. Link, service, state
machine and disk are real; the servers' networks are in memory. `make bench-agent` has 500 agents.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import benchmarks.agent.many_agents
import placewire.controller.agents.agents
from benchmarks.agent.cable import Cable
from benchmarks.agent.many import apply, on_decision
from benchmarks.agent.many_agents import Agent
from placewire.agent.service import Service
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.records.journal import Journal
from tests.free_port import free_port

pytestmark = pytest.mark.timed

COUNT, DROPPING, DECISIONS = 12, 4, 6
DIAL_SECONDS = 30.0
# How often each decision sends each request; commit comes twice, the second time to keep.
TIMES = {"preview": 1, "stage": 1, "commit": 2}


@asynccontextmanager
async def running(folder: Path, authority: Authority, port: int) -> AsyncIterator[Sequence[Agent]]:
    """Runs COUNT agents; the first DROPPING of them have a cable that can be cut."""
    agents = []
    for number in range(COUNT):
        authority.issue(f"s{number}", "agent", folder / f"s{number}", lifetime_seconds=3600)
        cable = Cable("127.0.0.1", port) if number < DROPPING else None
        if cable is not None:
            await cable.listen()
        agents.append(Agent(folder, f"https://127.0.0.1:{port}", number, cable))
    tasks = [asyncio.create_task(one.run()) for one in agents]
    try:
        yield agents
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """By (server, request), how often the server executed the request."""
    counted: Counter[tuple[str, str]] = Counter()
    answer = Service.answer

    async def counting(self: Service, body: Any) -> Any:
        counted[self._server, body["request"]] += 1
        return await answer(self, body)

    monkeypatch.setattr(Service, "answer", counting)
    return counted


async def test_nothing_is_lost_and_nothing_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Counter[tuple[str, str]]
) -> None:
    monkeypatch.setattr(
        placewire.agent.connection.controller_connection,  # type: ignore[attr-defined]
        "RECONNECT_SECONDS",
        (0.02, 0.1),
    )
    monkeypatch.setattr(benchmarks.agent.many_agents, "LINKED", (0.02, 0.3))
    monkeypatch.setattr(benchmarks.agent.many_agents, "GONE", (0.02, 0.2))
    monkeypatch.setattr(placewire.controller.agents.agents, "_ALL_DIAL_SECONDS", 0.1)
    authority, port = Authority.load(tmp_path / "ca"), free_port()
    async with running(tmp_path, authority, port) as servers:
        async with Agents.listening("127.0.0.1", port, authority) as agents:
            await agents.wait_for([one.name for one in servers], DIAL_SECONDS)
            for one in servers:
                one.drops = True
            with Journal.open(tmp_path / "journal") as journal:
                for number in range(DECISIONS):
                    await apply(agents, journal, number)
            for one in servers:
                one.drops = False
            assert await on_decision(agents, DECISIONS - 1) == COUNT
    assert all(one.cuts > 2 for one in servers[:DROPPING]), "they were linked all the time"
    assert {(one.name, what): done[one.name, what] for one in servers for what in TIMES} == {
        (one.name, what): DECISIONS * times for one in servers for what, times in TIMES.items()
    }
