"""A false controller, messages that are said again, and two agents of one name change nothing.

Real sockets, certificates, link, service, keeper and files; the server is in memory.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import placewire.controller.agents.tls_listener
import placewire.controller.change.change
from placewire.agent.contract.messages import (
    Commit,
    FindNeighbours,
    Neighbours,
    Poll,
    Preview,
    ReadBack,
    ReadBackResult,
    Renew,
    Reply,
    Restore,
    Stage,
    Welcome,
)
from placewire.agent.contract.state import ApplyReport, LeaseState
from placewire.controller.agents.authority import Authority, Issued, server_context
from placewire.controller.errors import AgentProblem, AgentRefused
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


# -- a false controller, and requests that an agent must refuse ------------------------------------


class Impostor:
    """Listens at the controller's address, answers every path, and counts requests."""

    def __init__(self, site: Site, issued: Issued, *, former_tls: bool = False) -> None:
        self.site, self.asked = site, 0
        self.context = server_context(site.authority.certificate_file, issued)
        if former_tls:
            self.context.minimum_version = ssl.TLSVersion.TLSv1_2
            self.context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if request.path == "/v1/hello":
            return web.json_response({"session": "x"})
        endless = web.StreamResponse()
        await endless.prepare(request)
        while True:
            await endless.write(b" " * 65_536)
            await asyncio.sleep(0)  # Writing alone would not let other tasks run.

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_post("/{path:.*}", self.answer)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.05)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self.site.port, ssl_context=self.context).start()
            yield
        finally:
            await runner.cleanup()


def impostor(site: Site, kind: str) -> Impostor:
    if kind == "of another authority":
        issued = site.issue(
            "controller", kind="controller", by=Authority.load(site.folder / "stranger")
        )
    elif kind == "expired":
        issued = site.issue("controller", kind="controller", seconds=-1)
    elif kind == "an agent":
        issued = site.issue("controller")
    elif kind == "of another name":
        issued = site.issue("s2", kind="controller")
    else:
        issued = site.issue("controller", kind="controller")
    return Impostor(site, issued, former_tls=kind == "of former TLS")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("of another authority", "CERTIFICATE_VERIFY_FAILED"),
        ("expired", "certificate has expired"),
        ("an agent", "unsuitable certificate purpose"),
        ("of another name", "Hostname mismatch"),
        ("of former TLS", "no controller"),
    ],
)
async def test_an_agent_sends_nothing_to_a_controller_that_is_none(
    site: Site, kind: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before, false = site.agent.picture(), impostor(site, kind)
    async with false.listening(), running(site.agent):
        await until(lambda: said in caplog.text)
    assert false.asked == 0 and site.agent.picture() == before
    # Without a common TLS version, the handshake fails before either side can say why.
    assert ("no trusted connection" in caplog.text) == (kind != "of former TLS")


async def test_an_answer_without_end_is_ended(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        placewire.agent.connection.controller_connection,  # type: ignore[attr-defined]
        "LARGEST_ANSWER_BYTES",
        10**6,
    )
    before = site.agent.picture()
    async with impostor(site, "the real one").listening(), running(site.agent):
        await until(lambda: "has more than 1000000 bytes" in caplog.text)
    assert site.agent.picture() == before


async def test_an_old_generation_is_refused_and_told(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """An attacker may replay what a controller said before."""
    async with site.linked() as agents:
        before = site.agent.picture()
        for generation, rates in ((4, (10_000_000, 30_000_000)), (5, (1_000_000, 2_000_000))):
            staged = desired_state(generation, rates)
            report = await agents.ask(
                "s1", Stage(desired=staged, lease_seconds=30), ApplyReport, PATIENCE_SECONDS
            )
            assert not report.succeeded and "not above 5" in report.refusals[0].what
            assert f"generation {generation} is not above 5" in caplog.text
            caplog.clear()
        for request in (
            Commit(generation=4, lease_seconds=None),
            Renew(generation=4, lease_seconds=9),
            Restore(generation=4),
        ):
            with pytest.raises(AgentRefused, match="generation 5"):
                await agents.ask("s1", request, LeaseState, PATIENCE_SECONDS)
            assert "refused: " in caplog.text
            caplog.clear()
        assert site.agent.picture() == before


async def test_a_message_that_comes_again_is_answered_and_not_done_again(site: Site) -> None:
    """A message that is sent twice has the same id both times."""
    async with site.linked() as agents:
        stage = Stage(desired=desired_state(6, (1_000_000, 2_000_000)), lease_seconds=30)
        given: list[Any] = []
        begin = placewire.controller.agents.conversation.Conversation.begin

        def recorded(conversation: Any, request: Any) -> Any:
            given.append(begin(conversation, request))
            return given[-1]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                placewire.controller.agents.conversation.Conversation, "begin", recorded
            )
            assert (await agents.ask("s1", stage, ApplyReport, PATIENCE_SECONDS)).succeeded
        assert (
            await agents.ask("s1", Restore(generation=6), ApplyReport, PATIENCE_SECONDS)
        ).succeeded
        after = site.agent.picture()
        conversation = agents._link.conversations["s1"]
        again = placewire.controller.agents.conversation.Asked(
            given[0].envelope, asyncio.get_running_loop().create_future()
        )
        conversation.pending[again.envelope.id] = again
        conversation.waiting.append(again)
        conversation.news.set()
        reply: Reply = await asyncio.wait_for(again.answer, PATIENCE_SECONDS)
        assert reply.result is not None and reply.result["succeeded"], "as it was answered then"
        assert site.agent.picture() == after


async def test_neighbours_are_asked_through_our_own_bridges_only(site: Site) -> None:
    async with site.linked() as agents:
        ask = FindNeighbours(interfaces=("pw-nic0", "mgmt"), addresses=("10.7.0.2",))
        with pytest.raises(AgentRefused, match="mgmt: no bridge of the state in force here"):
            await agents.ask("s1", ask, Neighbours, PATIENCE_SECONDS)
        ask = FindNeighbours(interfaces=("pw-nic0",), addresses=("10.7.0.2", "10.7.1.2"))
        (found,) = (await agents.ask("s1", ask, Neighbours, PATIENCE_SECONDS)).found
        assert (found.interface, found.address) == ("pw-nic0", "10.7.0.2")


# -- two agents of one name ------------------------------------------------------------------------


async def test_a_copy_of_a_server_is_turned_away_and_nobody_is_asked_to_change(site: Site) -> None:
    copy = MemoryAgent(site.cluster.copy_of("s1", 9))
    async with site.linked() as agents:
        before = site.agent.picture(), copy.picture()
        async with running(copy):
            await until(lambda: agents.rivals)
            (note,) = site.notes
            assert "is a second 's1': the first, at 127.0.0.1, is linked" in note
            assert "`controller authority deny s1`" not in note, "that is the agent's to read"
            desired = desired_state(6)
            for request in (Preview(desired=desired), Stage(desired=desired, lease_seconds=9)):
                with pytest.raises(AgentProblem, match="two agents say that they are this") as told:
                    await agents.ask_all({"s1": request}, ApplyReport, PATIENCE_SECONDS)
                assert told.value.exit_code == 5 and told.value.where == "s1"
            verified = await agents.ask(
                "s1", ReadBack(generation=GENERATION), ReadBackResult, PATIENCE_SECONDS
            )
            assert not verified.deviations, "the first is still heard, to be undone if need be"
        assert (site.agent.picture(), copy.picture()) == before
    async with site.linked() as agents:  # The next command may not see the copy in time.
        assert agents.rivals == {"s1": ("127.0.0.1", "127.0.0.1")}
        site.authority.revocations.deny("s1")
    issued = site.issue("s1")
    pem = issued.key_file.read_bytes() + issued.certificate_file.read_bytes()
    Path(site.agent.config.certificate_file).write_bytes(pem)
    async with site.linked() as agents:
        assert agents.rivals == {}, "with another certificate it is itself again"


async def test_a_controller_that_is_held_up_takes_no_copy_for_the_first(site: Site) -> None:
    async with site.linked() as agents:
        conversation = agents._link.conversations["s1"]
        await until(lambda: conversation.open_polls)
        usual = conversation.news.set

        def held_up() -> None:
            """After the first was asked to poll, and before its poll can be heard."""
            usual()
            time.sleep(1.5)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(conversation.news, "set", held_up)
            copy = site.dial(site.issue("s1"))
            status, _ = await site.post("hello", hello("s1", instance="a copy"), copy)
        assert status == 403 and set(agents.rivals) == {"s1"}


async def test_an_agent_that_starts_again_is_no_rival_of_its_former_self(site: Site) -> None:
    """This holds even where its server lost power and left a poll open."""
    async with site.listening() as agents:
        context = site.dial(site.issue("s1"))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
            _, text = await site.post_with(http, "hello", hello("s1", instance="former"))
            poll = Poll(session=Welcome.model_validate_json(text).session)
            dead = asyncio.create_task(
                site.post_with(http, "poll", poll.model_dump_json().encode())
            )
            await until(lambda: agents._link.conversations["s1"].open_polls)
            async with running(site.agent):
                await until(lambda: agents.hello["s1"].instance == site.agent.member.folder)
                assert await agents.ask(
                    "s1", ReadBack(generation=GENERATION), ReadBackResult, PATIENCE_SECONDS
                )
            await dead
    assert agents.rivals == {} and site.notes == []
