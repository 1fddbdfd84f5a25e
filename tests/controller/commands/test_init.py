"""`init` waits for NVIDIA's driver where an agent has not heard from it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import LeaseState
from placewire.controller.commands import init
from tests.controller.plans import capabilities


def hello(server: str, *, unread: bool) -> Hello:
    return Hello(
        server=server, agent_pid=1, lease=LeaseState(phase="idle", generation=0),
        capabilities=capabilities().model_copy(update={"gpus_unread": unread}),
    )  # fmt: skip


async def test_it_takes_the_hello_that_has_the_gpus() -> None:
    agents: Any = SimpleNamespace(
        hello={"s1": hello("s1", unread=False), "s2": hello("s2", unread=True)}
    )
    said: list[str] = []
    found = asyncio.create_task(init._with_gpus(agents, ["s1", "s2"], said.append))
    while not said:
        await asyncio.sleep(0)
    agents.hello["s2"] = hello("s2", unread=False)
    hellos = await found
    assert [one.capabilities.gpus_unread for one in hellos.values()] == [False, False]
    assert said == ["waiting for NVIDIA's driver on s2, at most 25 s"]


async def test_it_waits_no_longer_than_a_driver_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "_GPUS_SECONDS", 0.0)
    agents: Any = SimpleNamespace(hello={"s1": hello("s1", unread=True)})
    hellos = await init._with_gpus(agents, ["s1"], lambda line: None)
    assert hellos["s1"].capabilities.gpus_unread
