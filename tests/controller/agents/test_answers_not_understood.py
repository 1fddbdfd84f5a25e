"""Answers that are too large or not asked for, and agents of other releases, harm nobody.

Real sockets, certificates, link, service, keeper and files; the server is in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import placewire.controller.agents.tls_listener
import placewire.controller.change.change
from placewire.agent.contract.messages import (
    PROTOCOL_VERSION,
    Hello,
    Observation,
    Observe,
    Poll,
    ReadBack,
    ReadBackResult,
    Welcome,
)
from placewire.controller.change.change import NetworkChange
from placewire.controller.errors import AgentProblem, RestoreFailed
from placewire.controller.records.journal import Journal
from tests.agent.states import desired_state
from tests.controller.agents.link_site import (
    GENERATION,
    PATIENCE_SECONDS,
    Site,
    hello,
    patient_site,
    running,
    until,
)
from tests.controller.memory_agents import MemoryAgent


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return patient_site(tmp_path, monkeypatch)


# -- answers that are too large --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ('{"a": "' + "x" * 2**24 + '"}', "at most 16777216 bytes are accepted"),
        ("[" + "0," * 500_000 + "0]", "at most 500000 are accepted"),
    ],
    ids=["bytes", "values"],
)
async def test_a_request_whose_answer_is_too_large_fails_at_once_and_says_why(
    site: Site, result: str, why: str
) -> None:
    async with (
        site.listening() as agents,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=site.dial())) as http,
    ):
        _, text = await site.post_with(http, "hello", hello())
        session = Welcome.model_validate_json(text).session
        asking = asyncio.create_task(agents.ask("s2", Observe(), Observation, 600))
        poll = Poll(session=session).model_dump_json().encode()
        _, text = await site.post_with(http, "poll", poll)
        (envelope,) = json.loads(text)["envelopes"]
        reply = f'{{"session": "{session}", "id": "{envelope["id"]}", "result": {result}}}'
        assert (await site.post_with(http, "replies", reply.encode()))[0] == 413
        with pytest.raises(AgentProblem, match=why) as raised:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asking
        assert raised.value.where == "s2" and "agent status" in raised.value.remedy


@asynccontextmanager
async def asked_of_s2(site: Site) -> AsyncIterator[tuple[aiohttp.ClientSession, Any, str]]:
    """s2 has a request and does not answer yet: (its connections, who waits, the request's id)."""
    async with (
        site.listening() as agents,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=site.dial())) as http,
    ):
        _, text = await site.post_with(http, "hello", hello())
        session = Welcome.model_validate_json(text).session
        asking = asyncio.create_task(agents.ask("s2", Observe(), Observation, 600))
        poll = Poll(session=session).model_dump_json().encode()
        _, text = await site.post_with(http, "poll", poll)
        (envelope,) = json.loads(text)["envelopes"]
        yield http, asking, envelope["id"]
        asking.cancel()


async def test_who_sends_thousands_of_mistakes_is_not_judged_again_at_once(site: Site) -> None:
    """Each such message takes a large part of a second, in which no other agent is heard."""
    many = {"version": PROTOCOL_VERSION, "capabilities": {"nics": [{}] * 2000}}
    few = {"version": PROTOCOL_VERSION, "capabilities": {"nics": [{}]}}
    async with site.linked() as agents:
        for document in (few, few):
            status, text = await site.post("hello", json.dumps(document).encode())
            assert status == 400 and "server Field required" in text
        status, text = await site.post("hello", json.dumps(many).encode())
        assert status == 400 and "mistakes" in text
        status, text = await site.post("hello", json.dumps(many).encode())
        assert status == 403 and "more than 1000 mistakes" in text
        assert (await site.post("hello", hello()))[0] == 403
        assert await agents.ask(
            "s1", ReadBack(generation=GENERATION), ReadBackResult, PATIENCE_SECONDS
        )


NO_REPLY = b"this is no reply, and whoever tried to understand it would say so"


async def test_what_nobody_asked_for_is_not_understood(site: Site) -> None:
    """It could take a second and half a gigabyte."""
    async with site.listening():
        assert (await site.post("replies", NO_REPLY))[0] == 204, "it said no hello"
        assert (await site.post("hello", hello()))[0] == 200
        assert (await site.post("replies", NO_REPLY))[0] == 204, "it was asked nothing"
    async with asked_of_s2(site) as (http, asking, identifier):
        assert (await site.post_with(http, "replies", NO_REPLY))[0] == 204, "it has no id"
        assert not asking.done()
        other = json.dumps({"session": "", "id": "other", "result": {"a": identifier}}).encode()
        assert (await site.post_with(http, "replies", other))[0] == 204
        with pytest.raises(AgentProblem, match="it is the answer to another request") as raised:
            await asking
        assert raised.value.where == "s2"
        again = identifier.encode() + NO_REPLY
        assert (await site.post_with(http, "replies", again))[0] == 204, "one is read, no second"
    assert not site.notes


async def test_a_request_whose_answer_is_not_understood_fails_at_once(site: Site) -> None:
    async with asked_of_s2(site) as (http, asking, identifier):
        body = identifier.encode() + NO_REPLY
        assert (await site.post_with(http, "replies", body))[0] == 400
        with pytest.raises(AgentProblem, match="its message is not understood") as raised:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asking
        assert raised.value.where == "s2"


# -- releases that do not understand each other, with a plan in force ------------------------------


@contextlib.contextmanager
def speaking(agent: MemoryAgent, version: int) -> Iterator[None]:
    """The agent as another release starts it: its hello has other keys."""
    greet = agent._hello

    class Later(Hello):
        tunnels: tuple[str, ...] = ("t",)

    def later() -> Hello:
        return Later(**{**greet().__dict__, "version": version, "instance": f"of {version}"})

    agent._hello = later  # type: ignore[method-assign]
    try:
        yield
    finally:
        agent._hello = greet  # type: ignore[method-assign]


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
async def test_an_agent_of_another_release_keeps_its_plan_and_is_named(
    site: Site, version: int
) -> None:
    before = site.agent.picture()
    with speaking(site.agent, version):
        async with site.listening() as agents, running(site.agent):
            await until(lambda: site.notes)
            with pytest.raises(AgentProblem, match=f"s1: speaks version {version} of the") as told:
                await agents.wait_for(["s1"], timeout_seconds=0.1)
            assert told.value.exit_code == 5
    assert site.agent.picture() == before
    async with site.linked() as agents:
        read = ReadBack(generation=GENERATION)
        found = await agents.ask("s1", read, ReadBackResult, PATIENCE_SECONDS)
        assert not found.deviations, "the same release serves the plan that stayed in force"


async def test_a_change_in_which_an_agent_becomes_another_release_is_undone_everywhere(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that stayed is asked to restore; the other's lease runs out."""
    monkeypatch.setattr(placewire.controller.change.change, "LEASE_SECONDS", 3.0)
    monkeypatch.setattr(placewire.controller.change.change, "_RESTORE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(placewire.controller.agents.agents, "SILENCE_SECONDS", 1.0)
    second = MemoryAgent(site.cluster.members[1])
    desired = {
        name: desired_state(6, (1_000_000, 2_000_000)).model_copy(update={"server": name})
        for name in ("s1", "s2")
    }
    with Journal.open(tmp_path / "journal") as journal:
        async with site.listening() as agents, running(site.agent):
            with pytest.raises(RestoreFailed, match="s2"):
                async with NetworkChange(agents, journal, desired) as change:
                    async with running(second):
                        await agents.wait_for(["s1", "s2"], timeout_seconds=PATIENCE_SECONDS)
                        await change.stage()
                    with speaking(second, PROTOCOL_VERSION + 1):
                        async with running(second):
                            await change.keep()
            # It kept generation 6 without a lease; so only the request brings it back.
            await until(lambda: site.agent.keeper.lease.generation == GENERATION)
            async with running(second):
                await until(lambda: second.keeper.lease.is_idle)
    assert site.agent.keeper.lease.is_kept
