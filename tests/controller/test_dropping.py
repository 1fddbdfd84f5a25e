"""Agents whose connections are cut again and again while changes are applied to them: the real
link, service, state machine and disk; networks in memory. 500 of them: `make bench-agent`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import agent.link
import benchmarks.agent.many_agents
import controller.agents
from benchmarks.agent.cable import Cable
from benchmarks.agent.many import apply, on_decision
from benchmarks.agent.many_agents import Agent
from controller.agents import Agents
from controller.ca import Authority
from controller.journal import Journal
from sshd import free_port

pytestmark = pytest.mark.timed

COUNT, DROPPING, DECISIONS = 12, 4, 6
DIAL_SECONDS = 30.0


@asynccontextmanager
async def running(folder: Path, authority: Authority, port: int) -> AsyncIterator[Sequence[Agent]]:
    """The first DROPPING of them have a cable that can be cut."""
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


def done(folder: Path, one: Agent) -> Counter[tuple[str, int]]:
    """What its state machine noted on disk: (event, generation), one for each change it made."""
    records = map(json.loads, (folder / one.name / "audit.jsonl").read_text().splitlines())
    return Counter((record["event"], record["generation"]) for record in records)


async def test_nothing_is_lost_and_nothing_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent.link, "RECONNECT_SECONDS", (0.02, 0.1))
    monkeypatch.setattr(benchmarks.agent.many_agents, "LINKED", (0.02, 0.3))
    monkeypatch.setattr(benchmarks.agent.many_agents, "GONE", (0.02, 0.2))
    monkeypatch.setattr(controller.agents, "_ALL_DIAL_SECONDS", 0.1)
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
    steady = done(tmp_path, servers[-1])
    assert {generation for _, generation in steady} == set(range(1, DECISIONS + 1))
    assert all(done(tmp_path, one) == steady for one in servers)
