"""Tests the controller's end of the agent link over real TLS sockets, with simulated agents."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import placewire.controller.agents.agents
import placewire.controller.agents.tls_listener
from placewire.agent.contract.messages import (
    POLL_SECONDS,
    PROTOCOL_VERSION,
    Envelopes,
    Hello,
    Observe,
    Poll,
    ReadBack,
    ReadBackResult,
    Renew,
    Reply,
    Welcome,
)
from placewire.agent.contract.state import LeaseState, Refusal
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.errors import AgentProblem, AgentRefused, AgentUnreachable, UsageError
from tests.controller.agents.dialling import client_context
from tests.controller.plans import capabilities

pytestmark = pytest.mark.timed

# Bounds only what would hang.
PATIENCE_SECONDS = 30.0
READ_BACK = ReadBackResult(deviations=(), problems=("canary gone",))
LEASE = LeaseState(phase="idle", generation=3)


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.load(directory / "ca")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def listening(self) -> Any:
        return Agents.listening("127.0.0.1", self.port, self.authority)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


class TestAgent:
    """Answers by `answer(body) -> result model or Refusal or None (never)`."""

    __test__ = False

    def __init__(self, site: Site, server: str, answer: Callable[[Any], Any], pid: int = 1) -> None:
        self.site, self.server, self.answer, self.pid = site, server, answer, pid
        self.claims = server
        self.version = PROTOCOL_VERSION
        self.received: list[str] = []

    @asynccontextmanager
    async def http(self) -> AsyncIterator[aiohttp.ClientSession]:
        issued = self.site.authority.issue(
            self.server, "agent", self.site.directory / "agents", lifetime_seconds=60
        )
        context = client_context(self.site.authority.certificate_file, issued)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as http:
            yield http

    async def post(self, http: aiohttp.ClientSession, path: str, message: Any) -> tuple[int, str]:
        async with http.post(
            f"https://127.0.0.1:{self.site.port}/v1/{path}",
            data=message.model_dump_json(),
            server_hostname="controller",
        ) as response:
            return response.status, await response.text()

    async def hello(self, http: aiohttp.ClientSession) -> tuple[int, str]:
        return await self.post(
            http,
            "hello",
            Hello(
                version=self.version,
                server=self.claims,
                agent_pid=self.pid,
                capabilities=capabilities(),
                lease=LEASE,
            ),
        )

    async def serve(self) -> None:
        async with self.http() as http:
            status, text = await self.hello(http)
            assert status == 200, text
            session = Welcome.model_validate_json(text).session
            while True:
                status, text = await self.post(http, "poll", Poll(session=session))
                assert status == 200, text
                for envelope in Envelopes.model_validate_json(text).envelopes:
                    self.received.append(envelope.body.request)
                    answer = self.answer(envelope.body)
                    if answer is not None:
                        await self.post(http, "replies", self.reply(session, envelope.id, answer))

    @staticmethod
    def reply(session: str, identifier: str, answer: Any) -> Reply:
        if isinstance(answer, Refusal):
            return Reply(session=session, id=identifier, refusal=answer)
        return Reply(session=session, id=identifier, result=answer.model_dump(mode="json"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.serve())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
                await task


def answers(what: Any) -> Callable[[Any], Any]:
    return lambda body: what


REFUSAL = Refusal(what="the NIC is gone", where="nic0", remedy="put it back")


async def test_a_question_and_its_answer(site: Site) -> None:
    async with site.listening() as agents, TestAgent(site, "s1", answers(READ_BACK)).running():
        await agents.wait_for(["s1"], timeout_seconds=PATIENCE_SECONDS)
        assert agents.hello["s1"].lease == LEASE
        started = time.monotonic()
        assert (
            await agents.ask("s1", ReadBack(generation=1), ReadBackResult, PATIENCE_SECONDS)
            == READ_BACK
        )
        waited = time.monotonic() - started
        assert waited < POLL_SECONDS / 2, "an open poll hands a request over at once"


async def test_a_refusal_says_what_the_agent_said(site: Site) -> None:
    async with site.listening() as agents, TestAgent(site, "s1", answers(REFUSAL)).running():
        await agents.wait_for(["s1"], timeout_seconds=PATIENCE_SECONDS)
        with pytest.raises(AgentRefused, match="s1 nic0: the NIC is gone\n  put it back"):
            await agents.ask("s1", Observe(), ReadBackResult, PATIENCE_SECONDS)


async def test_an_answer_of_another_kind_is_a_problem_of_that_server(site: Site) -> None:
    async with site.listening() as agents, TestAgent(site, "s1", answers(LEASE)).running():
        await agents.wait_for(["s1"], timeout_seconds=PATIENCE_SECONDS)
        with pytest.raises(AgentProblem, match="s1: its answer to read_back is not understood"):
            await agents.ask("s1", ReadBack(generation=1), ReadBackResult, PATIENCE_SECONDS)


async def test_all_missing_agents_are_named(site: Site) -> None:
    async with site.listening() as agents, TestAgent(site, "s2", answers(READ_BACK)).running():
        await agents.wait_for(["s2"], timeout_seconds=PATIENCE_SECONDS)
        with pytest.raises(AgentUnreachable) as problem:
            await agents.wait_for(["s1", "s2", "s3"], timeout_seconds=0.5)
        assert problem.value.servers == ("s1", "s3")
        with pytest.raises(AgentUnreachable, match="not dialled in"):
            await agents.ask("s1", Observe(), ReadBackResult, PATIENCE_SECONDS)


async def test_every_outcome_is_collected_before_one_is_raised(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = placewire.controller.agents.agents._answer

    async def answer(conversation: Any, asked: Any, timeout_seconds: float) -> Reply:
        """The time is over only where nothing would ever come."""
        never = conversation.hello.server == "s3"
        return await usual(conversation, asked, timeout_seconds if never else PATIENCE_SECONDS)

    monkeypatch.setattr(placewire.controller.agents.agents, "_answer", answer)
    async with (
        site.listening() as agents,
        TestAgent(site, "s1", answers(READ_BACK)).running(),
        TestAgent(site, "s2", answers(REFUSAL)).running(),
        TestAgent(site, "s3", answers(None)).running(),
    ):
        await agents.wait_for(["s1", "s2", "s3"], timeout_seconds=PATIENCE_SECONDS)
        ask = dict.fromkeys(["s1", "s2"], ReadBack(generation=1))
        with pytest.raises(AgentRefused) as refused:
            await agents.ask_all(ask, ReadBackResult, PATIENCE_SECONDS)
        assert refused.value.answered == {"s1": READ_BACK}
        with pytest.raises(AgentUnreachable, match=r"no answer in 0\.5 s") as unreachable:
            await agents.ask_all({**ask, "s3": ReadBack(generation=1)}, ReadBackResult, 0.5)
        assert unreachable.value.servers == ("s3",)
        assert unreachable.value.answered == {"s1": READ_BACK}


async def test_questions_to_all_go_out_at_once(site: Site) -> None:
    names = [f"s{k}" for k in range(6)]
    async with site.listening() as agents, contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(TestAgent(site, name, answers(READ_BACK)).running())
        await agents.wait_for(names, timeout_seconds=PATIENCE_SECONDS)
        started = time.monotonic()
        found = await agents.ask_all(
            dict.fromkeys(names, ReadBack(generation=1)), ReadBackResult, PATIENCE_SECONDS
        )
        assert found == dict.fromkeys(names, READ_BACK)
        assert time.monotonic() - started < POLL_SECONDS / 2


async def test_an_agent_is_not_who_it_claims_to_be(site: Site) -> None:
    agent = TestAgent(site, "s1", answers(READ_BACK))
    agent.claims = "s2"
    async with site.listening() as agents, agent.http() as http:
        status, text = await agent.hello(http)
        assert status == 403
        assert "certificate of 's1'" in Refusal.model_validate_json(text).where
        assert not agents.present("s2")
        assert not agents.present("s1")


async def test_another_protocol_version_is_refused_by_name(site: Site) -> None:
    agent = TestAgent(site, "s1", answers(READ_BACK))
    agent.version = PROTOCOL_VERSION + 1
    async with site.listening(), agent.http() as http:
        status, text = await agent.hello(http)
        assert status == 403
        assert f"version {PROTOCOL_VERSION + 1}" in text


async def test_a_session_cannot_be_used_with_another_s_certificate(site: Site) -> None:
    first, second = (TestAgent(site, name, answers(READ_BACK)) for name in ("s1", "s2"))
    async with site.listening(), first.http() as http, second.http() as other:
        session = Welcome.model_validate_json((await first.hello(http))[1]).session
        status, _ = await second.post(other, "poll", Poll(session=session))
        assert status == 410


async def test_a_silent_agent_is_unreachable_long_before_the_timeout(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placewire.controller.agents.agents, "SILENCE_SECONDS", 0.5)
    async with site.listening() as agents:
        async with TestAgent(site, "s1", answers(READ_BACK)).running():
            await agents.wait_for(["s1"], timeout_seconds=PATIENCE_SECONDS)
        started = time.monotonic()
        with pytest.raises(AgentUnreachable, match="silent"):
            await agents.ask("s1", ReadBack(generation=1), ReadBackResult, 30)
        assert time.monotonic() - started < 15
        assert not agents.present("s1")


async def test_the_same_agent_is_asked_again_after_a_broken_connection(site: Site) -> None:
    """The agent's connection breaks after it was sent the request, as if that had been lost."""
    deaf, hearing = (TestAgent(site, "s1", answers(a), pid=7) for a in (None, READ_BACK))
    async with site.listening() as agents:
        async with deaf.running():
            await agents.wait_for(["s1"], timeout_seconds=PATIENCE_SECONDS)
            question = asyncio.create_task(
                agents.ask("s1", ReadBack(generation=1), ReadBackResult, PATIENCE_SECONDS)
            )
            while not deaf.received:
                await asyncio.sleep(0.01)
        async with hearing.running():
            assert await question == READ_BACK


async def test_an_agent_that_restarted_is_not_asked_again(site: Site) -> None:
    deaf = TestAgent(site, "s1", answers(None), pid=7)
    restarted = TestAgent(site, "s1", answers(LEASE), pid=8)
    async with site.listening() as agents:
        async with deaf.running():
            await agents.wait_for(["s1"], timeout_seconds=PATIENCE_SECONDS)
            question = asyncio.create_task(
                agents.ask("s1", Renew(generation=1, lease_seconds=9), LeaseState, PATIENCE_SECONDS)
            )
            while not deaf.received:
                await asyncio.sleep(0.01)
        async with restarted.running():
            with pytest.raises(AgentUnreachable, match="restarted"):
                await question
            assert restarted.received == []
            ask = agents.ask(
                "s1", Renew(generation=1, lease_seconds=9), LeaseState, PATIENCE_SECONDS
            )
            assert await ask == LEASE


async def test_closing_does_not_wait_for_long_polls(site: Site) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with site.listening() as agents:
            for name in ("s1", "s2"):
                agent = TestAgent(site, name, answers(READ_BACK))
                task = asyncio.create_task(agent.serve())
                stack.callback(task.cancel)
            await agents.wait_for(["s1", "s2"], timeout_seconds=PATIENCE_SECONDS)
            await asyncio.sleep(0.1)
            closing = time.monotonic()
        assert time.monotonic() - closing < POLL_SECONDS / 2


async def test_two_controllers_do_not_listen_at_one_address(site: Site) -> None:
    async with site.listening():
        with pytest.raises(UsageError, match="cannot listen for agents") as refused:
            async with site.listening():
                pass
        assert "another controller may be running" in refused.value.remedy
        assert "`controller provision PLAN --listen HOST:PORT`" in refused.value.remedy


async def shown(site: Site) -> str:
    """The serial number of the certificate that a listening controller shows a new connection."""
    issued = site.authority.issue("s1", "agent", site.directory / "agents", lifetime_seconds=3600)
    context = client_context(site.authority.certificate_file, issued)
    _, writer = await asyncio.open_connection(
        "127.0.0.1", site.port, ssl=context, server_hostname="controller"
    )
    serial: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return serial


@pytest.mark.parametrize("left", [0.0, 7200.0], ids=["it lasts", "it ends soon"])
async def test_a_command_that_outlasts_its_certificate_shows_a_new_one(
    site: Site, monkeypatch: pytest.MonkeyPatch, left: float
) -> None:
    module = placewire.controller.agents.agents
    monkeypatch.setattr(module, "_CERTIFICATE_SECONDS", 3600.0)
    monkeypatch.setattr(module, "_RENEWED_WITH_LEFT_SECONDS", left)
    monkeypatch.setattr(module, "_LOOK_AT_CERTIFICATE_SECONDS", 0.01)
    renewed = asyncio.Event()
    renew_own = Authority.renew_own

    def noted(self: Authority, *of: Any, **options: Any) -> None:
        renew_own(self, *of, **options)
        renewed.set()

    monkeypatch.setattr(Authority, "renew_own", noted)
    async with site.listening() as agents, TestAgent(site, "s1", answers(READ_BACK)).running():
        await agents.wait_for(["s1"], timeout_seconds=PATIENCE_SECONDS)
        first = await shown(site)
        if not left:
            assert await shown(site) == first and not renewed.is_set()
            return
        renewed.clear()
        await asyncio.wait_for(renewed.wait(), PATIENCE_SECONDS)
        assert await shown(site) != first
        asked = ReadBack(generation=3)
        answer = await agents.ask("s1", asked, ReadBackResult, PATIENCE_SECONDS)
        assert answer == READ_BACK, "who is in stays in"


@pytest.mark.parametrize(
    ("jump_days", "is_due"), [(0, False), (14, False), (16, True), (40, True), (-1, True)]
)
def test_a_certificate_is_made_anew_where_its_time_is_over_or_has_not_begun(
    jump_days: int, is_due: bool
) -> None:
    of = placewire.controller.agents.agents
    assert of._is_due(1e9, 1e9 + jump_days * 86_400.0) == is_due
    assert not of._is_due(1e9, 1e9 - 10.0), "a clock that is set right by little"


@pytest.mark.parametrize("days", [40, -400], ids=["ahead", "back"])
async def test_a_command_whose_clock_is_set_shows_a_new_certificate(
    site: Site, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    module = placewire.controller.agents.agents
    jump_seconds = [0.0]
    monkeypatch.setattr(module, "_LOOK_AT_CERTIFICATE_SECONDS", 0.01)
    monkeypatch.setattr(module, "_now_unix", lambda: time.time() + jump_seconds[0])
    async with site.listening():
        first = await shown(site)
        assert await shown(site) == first
        jump_seconds[0] = days * 86_400.0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await shown(site) == first:
                await asyncio.sleep(0.01)
        second = await shown(site)
        assert await shown(site) == second, "once"


@pytest.mark.parametrize(("longest", "said"), [(3600.0, None), (-1.0, "close")])
async def test_an_old_connection_is_made_anew_so_that_new_certificates_count(
    site: Site, monkeypatch: pytest.MonkeyPatch, longest: float, said: str | None
) -> None:
    monkeypatch.setattr(placewire.controller.agents.tls_listener, "LONGEST_SECONDS", longest)
    agent = TestAgent(site, "s1", answers(READ_BACK))
    async with site.listening(), agent.http() as http:
        message = Hello(server="s1", agent_pid=1, capabilities=capabilities(), lease=LEASE)
        async with http.post(
            f"https://127.0.0.1:{site.port}/v1/hello",
            data=message.model_dump_json(),
            server_hostname="controller",
        ) as response:
            assert response.status == 200 and response.headers.get("Connection") == said
        async with http.post(
            f"https://127.0.0.1:{site.port}/v1/hello", data="no", server_hostname="controller"
        ) as response:
            assert response.status >= 400, "it is refused, and may be closed for that alone"
            assert said is None or response.headers.get("Connection") == said
