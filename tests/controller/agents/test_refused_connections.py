"""Tests what both ends of the link refuse: it is told and recorded, and changes nothing.

Real sockets, certificates, link, service, keeper and files; the server is in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import json
import logging
import resource
import ssl
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import placewire.controller.agents.descriptors as descriptors_of_agents
import placewire.controller.agents.tls_listener
import placewire.controller.change.change
from placewire.agent.connection import controller_connection
from placewire.agent.contract.messages import (
    PROTOCOL_VERSION,
    Commit,
    FindNeighbours,
    Hello,
    Neighbours,
    Observation,
    Observe,
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
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority, Issued, server_context
from placewire.controller.agents.refused_connections import RefusedConnections
from placewire.controller.agents.unproven import Limits, Unproven
from placewire.controller.change.change import NetworkChange
from placewire.controller.errors import AgentProblem, AgentRefused, RestoreFailed
from placewire.controller.records.journal import Journal
from tests.agent.states import desired_state
from tests.controller.agents.dialling import client_context
from tests.controller.memory_agents import MemoryAgent
from tests.controller.memory_cluster import MemoryCluster
from tests.controller.plans import capabilities

LEASE = LeaseState(phase="idle", generation=0)
GENERATION = 5
# Bounds only what would hang, and is less than a connection may do nothing.
PATIENCE_SECONDS = 60.0


class Site:
    """A controller, server s1 that keeps generation 5, and a certificate for s2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = MemoryCluster(folder, servers=2)
        self.authority, self.port = self.cluster.authority, self.cluster.port
        self.notes_file = folder / "refused.jsonl"
        self.said: list[str] = []
        self.agent = MemoryAgent(self.cluster.members[0])
        self.agent.keeper.stage(desired_state(GENERATION), 30)
        self.agent.keeper.commit(GENERATION, None)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Agents]:
        refused_connections = RefusedConnections(self.notes_file, self.said.append)
        async with Agents.listening(
            "127.0.0.1", self.port, self.authority, refused_connections
        ) as agents:
            yield agents

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[Agents]:
        async with self.listening() as agents, running(self.agent):
            await agents.wait_for(["s1"], timeout_seconds=PATIENCE_SECONDS)
            yield agents

    @property
    def notes(self) -> list[str]:
        if not self.notes_file.exists():
            return []
        return [json.loads(line)["why"] for line in self.notes_file.read_text().splitlines()]

    def issue(
        self,
        server: str,
        *,
        kind: str = "agent",
        seconds: float = 3600,
        by: Authority | None = None,
    ) -> Issued:
        folder = self.folder / f"{kind} {server} {seconds} {by is None}"
        authority = by or self.authority
        return authority.issue(server, kind, folder, lifetime_seconds=seconds)  # type: ignore[arg-type]

    def dial(self, issued: Issued | None = None) -> ssl.SSLContext:
        """The TLS context of an agent with this certificate; by default one of s2."""
        issued = issued or self.issue("s2")
        return client_context(self.authority.certificate_file, issued)

    async def post(
        self, path: str, body: bytes, context: ssl.SSLContext | None = None
    ) -> tuple[int, str]:
        connector = aiohttp.TCPConnector(ssl=context or self.dial())
        async with aiohttp.ClientSession(connector=connector) as http:
            return await self.post_with(http, path, body)

    async def post_with(
        self, http: aiohttp.ClientSession, path: str, body: bytes
    ) -> tuple[int, str]:
        url = f"https://127.0.0.1:{self.port}/v1/{path}"
        async with http.post(url, data=body, server_hostname="controller") as response:
            return response.status, await response.text()

    async def write(self, data: bytes) -> bytes:
        """Sends these bytes with s2's certificate; returns the first line of the answer."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.dial(), server_hostname="controller"
        )
        writer.write(data)
        line = await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
        writer.close()
        return line


@asynccontextmanager
async def running(one: MemoryAgent) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(
        placewire.agent.connection.controller_connection,  # type: ignore[attr-defined]
        "RECONNECT_SECONDS",
        (0.01, 0.05),
    )
    monkeypatch.setattr(controller_connection, "REFUSED_SECONDS", 0.1)
    monkeypatch.setattr(placewire.controller.agents.agents, "_ALL_DIAL_SECONDS", 0.2)
    monkeypatch.setattr(placewire.controller.agents.agents, "SILENCE_SECONDS", 60.0)
    # A busy machine may hold this process up for long, and with it both ends of each connection.
    monkeypatch.setattr(placewire.controller.agents.agent_connections, "READ_SECONDS", 120.0)
    for name in ("HANDSHAKE_SECONDS", "HEADER_SECONDS"):
        monkeypatch.setattr(placewire.controller.agents.tls_listener, name, 120.0)
    return Site(tmp_path)


def hello(server: str = "s2", **changes: Any) -> bytes:
    said = Hello(server=server, agent_pid=1, capabilities=capabilities(), lease=LEASE)
    document = said.model_dump(mode="json") | changes
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


async def not_let_in(site: Site, issued: Issued | None) -> None:
    if issued is None:
        context = ssl.create_default_context(cafile=str(site.authority.certificate_file))
    else:
        context = site.dial(issued)
    with pytest.raises((aiohttp.ClientError, OSError)):
        await site.post("hello", hello(), context)


async def of_another_authority(site: Site) -> None:
    stranger = Authority.load(site.folder / "stranger")
    await not_let_in(site, site.issue("s1", by=stranger))


async def expired(site: Site) -> None:
    await not_let_in(site, site.issue("s1", seconds=-1))


async def without_a_certificate(site: Site) -> None:
    await not_let_in(site, None)


async def with_the_controllers(site: Site) -> None:
    await not_let_in(site, site.issue("controller", kind="controller"))


async def with_former_tls(site: Site) -> None:
    context = site.dial()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((aiohttp.ClientError, OSError)):
        await site.post("hello", hello(), context)


async def without_tls(site: Site) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"POST /v1/hello HTTP/1.1\r\n\r\n")
    await writer.drain()
    writer.close()


async def denied(site: Site) -> None:
    context = site.dial()
    assert site.authority.revocations.deny("s2") >= 1
    assert (await site.post("hello", hello(), context))[0] == 403


async def denied_while_linked(site: Site) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=site.dial())) as http:
        status, text = await site.post_with(http, "hello", hello())
        session = Welcome.model_validate_json(text).session
        assert status == 200 and site.authority.revocations.deny("s2") >= 1
        poll = Poll(session=session).model_dump_json().encode()
        assert (await site.post_with(http, "poll", poll))[0] == 403


async def expired_while_linked(site: Site) -> None:
    """The certificate expires while the connection that was made with it stays open."""
    context, now = site.dial(site.issue("s2", seconds=600)), time.time
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
        assert (await site.post_with(http, "hello", hello()))[0] == 200
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                placewire.controller.agents.agent_connections.time,  # type: ignore[attr-defined]
                "time",
                lambda: now() + 900,
            )
            assert (await site.post_with(http, "hello", hello()))[0] == 403


async def as_another_server(site: Site) -> None:
    assert (await site.post("hello", hello("s1")))[0] == 403


async def of_version_0(site: Site) -> None:
    assert (await site.post("hello", hello(version=0)))[0] == 403


async def of_no_version(site: Site) -> None:
    assert (await site.post("hello", hello(version=None)))[0] == 403


async def oversized(site: Site) -> None:
    assert (await site.post("hello", hello() + b" " * 2**20))[0] == 413


async def oversized_as_it_says(site: Site) -> None:
    head = b"POST /v1/replies HTTP/1.1\r\nHost: c\r\nContent-Length: 99999999\r\n\r\n"
    assert b" 413 " in await site.write(head)


async def of_unknown_length(site: Site) -> None:
    head = b"POST /v1/poll HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 413 " in await site.write(head)


async def slow(site: Site) -> None:
    head = b"POST /v1/hello HTTP/1.1\r\nHost: c\r\nContent-Length: 900\r\n\r\n{"
    assert b" 408 " in await site.write(head)


async def slow_from_the_start(site: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
    writer.close()


async def slow_with_its_header(site: Site) -> None:
    """It has a valid certificate, and sends a byte of its request now and then."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", site.port, ssl=site.dial(), server_hostname="controller"
    )
    sending = asyncio.create_task(_drip(writer))
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
    sending.cancel()


async def _drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /v1/hello HTTP/1.1\r\nHost: c\r\nX-Slow: ")
    with contextlib.suppress(OSError):
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.1)


async def of_a_later_release(site: Site) -> None:
    """Its hello has keys that this release does not know."""
    said = hello(version=99, tunnels=["x"], capabilities={"epoch": 7})
    status, text = await site.post("hello", said)
    assert status == 403 and "install the same release" in json.loads(text)["remedy"]


async def of_an_earlier_release(site: Site) -> None:
    """Its hello has none of the keys that this release needs."""
    assert (await site.post("hello", b'{"version": 1, "name": "s2"}'))[0] == 403


async def of_many_values(site: Site) -> None:
    """A few megabytes of text would be hundreds as values."""
    assert (await site.post("hello", b'{"protected": [' + b"[]," * 30_000 + b"[]]}"))[0] == 413


async def compressed(site: Site) -> None:
    body = gzip.compress(b" " * 2**24 + b"{}")
    head = f"POST /v1/hello HTTP/1.1\r\nHost: c\r\nContent-Length: {len(body)}\r\n"
    said = head.encode() + b"Content-Encoding: gzip\r\n\r\n" + body
    assert b" 403 " in await site.write(said), "it is read as it came, and names no version"


async def not_understood(site: Site) -> None:
    assert (await site.post("hello", hello(secret="opensesame")))[0] == 400


Attack = Callable[[Site], Awaitable[None]]
ATTACKS: Mapping[Attack, str] = {
    of_another_authority: "is not valid: self-signed certificate in certificate chain",
    expired: "is not valid: certificate has expired",
    without_a_certificate: "it shows no certificate",
    with_the_controllers: "is not valid: unsuitable certificate purpose",
    with_former_tls: "it does not speak TLS 1.3",
    without_tls: "it does not speak TLS",
    denied: "s2: its certificate is denied",
    denied_while_linked: "s2: its certificate is denied",
    expired_while_linked: "s2: its certificate has expired",
    as_another_server: "certificate of 's2': claims to be 's1'",
    of_version_0: "s2: speaks version 0 of the protocol",
    of_no_version: "s2: speaks version None of the protocol",
    oversized: "/v1/hello: 10",
    oversized_as_it_says: "/v1/replies: 99999999 bytes",
    of_unknown_length: "/v1/poll: a message of unknown length",
    slow: "/v1/hello: its message was not complete within 2 s",
    slow_from_the_start: "no TLS handshake within 2 s",
    slow_with_its_header: "it sent no request in time",
    of_a_later_release: "s2: speaks version 99 of the protocol",
    of_an_earlier_release: "s2: speaks version 1 of the protocol",
    of_many_values: "/v1/hello: up to 60004 JSON values",
    compressed: "s2: speaks version None of the protocol",
    not_understood: "/v1/hello: its message is not understood: secret",
}


# The limit of the time that the attack takes, and no other.
ENDED_IN_TIME: Mapping[Attack, tuple[Any, str]] = {
    slow: (placewire.controller.agents.agent_connections, "READ_SECONDS"),
    slow_from_the_start: (placewire.controller.agents.tls_listener, "HANDSHAKE_SECONDS"),
    slow_with_its_header: (placewire.controller.agents.tls_listener, "HEADER_SECONDS"),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_it_is_refused_noted_and_changes_nothing(
    site: Site, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.linked() as agents:
        before = site.agent.picture()
        if attack in ENDED_IN_TIME:  # Not before the agent has its connection.
            monkeypatch.setattr(*ENDED_IN_TIME[attack], 2.0)
        await attack(site)
        await until(lambda: site.notes)
        (note,) = site.notes
        assert ATTACKS[attack] in note and "opensesame" not in note
        assert site.said == [f"turned away: 127.0.0.1: {note}"]
        assert stat.S_IMODE(site.notes_file.stat().st_mode) == 0o600
        assert await agents.ask(
            "s1", ReadBack(generation=GENERATION), ReadBackResult, PATIENCE_SECONDS
        )
        assert site.agent.picture() == before


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_who_only_looks_whether_somebody_listens_is_no_matter(site: Site) -> None:
    async with site.linked():
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.3)
        assert site.notes == [] and site.said == []


async def test_an_error_for_want_of_an_agent_says_who_was_turned_away(site: Site) -> None:
    async with site.listening() as agents:
        await expired(site)
        with pytest.raises(AgentProblem, match=r"turned away: 127\.0\.0\.1: .* has expired"):
            await agents.wait_for(["s2"], timeout_seconds=0.5)


def test_what_strangers_say_cannot_fill_a_disk_or_a_terminal(tmp_path: Path) -> None:
    said: list[str] = []
    refused_connections = RefusedConnections(tmp_path / "refused.jsonl", said.append)
    for number in range(2000):
        refused_connections.note("10.0.0.1", f"claims to be \x1b[2J{number}" + "x" * 10_000)
        refused_connections.note("10.0.0.1", "the same again")
    assert (tmp_path / "refused.jsonl").stat().st_size < 200_000
    assert len(said) < 300 and not any("\x1b" in line for line in said)
    assert sum("the same again" in line for line in said) == 1


def test_what_is_not_told_is_counted_and_one_address_takes_no_other_s_place(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    now = 0.0
    noted = RefusedConnections(tmp_path / "refused.jsonl", said.append, lambda: now)
    for number in range(1000):
        noted.note("10.0.0.66", f"attack {number}")
    noted.note("10.0.0.7", "its certificate has expired")
    assert said[-1] == "turned away: 10.0.0.7: its certificate has expired"
    assert said[-2] == "turned away: 968 more, which are not told one by one"
    for host in range(1000):
        noted.note(f"10.0.1.{host}", "attack")
    now += 60
    noted.note("10.0.0.8", "its certificate has expired")
    assert "10.0.0.8" in said[-1] and "more, which" in said[-2], "it goes on, slowly"
    for host in range(100):
        noted.note(f"10.0.2.{host}", "attack")
    noted.tell_dropped()
    assert said[-1] == "turned away: 95 more, which are not told one by one"
    rows = [json.loads(line) for line in (tmp_path / "refused.jsonl").open()]
    assert len(rows) == len(said) < 300
    assert sum(row.get("not_told", 0) for row in rows) + len(rows) - 3 == 1000 + 1000 + 100 + 2


# -- hosts that only hold connections open ---------------------------------------------------------

HOLD = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(site: Site, count: int) -> Iterator[None]:
    """A host that shows nothing has so many connections."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(site.port), str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            yield
        finally:
            process.stdin.close()


@contextlib.contextmanager
def descriptors(most: int) -> Iterator[None]:
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


async def test_more_idle_connections_than_descriptors_keep_no_agent_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors_of_agents, "WANTED", 200)
    with descriptors(200):
        async with site.linked() as agents:
            with held(site, 400):
                await until(lambda: site.notes)
                asked = ReadBack(generation=GENERATION)
                assert await agents.ask("s1", asked, ReadBackResult, PATIENCE_SECONDS)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert (await site.post("hello", hello()))[0] == 200, "another comes in"
        assert site.notes == ["too many connections that show no certificate or token"]


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may() -> None:
    script = (
        "import resource\n"
        "from placewire.controller.agents.descriptors import WANTED, raised_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)\n"
        "assert raised_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == most\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))\n"
        "assert raised_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 128\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


async def test_one_certificate_opens_no_more_than_its_share(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(placewire.controller.agents.agents._LIMITS, proven_each=3)
    monkeypatch.setattr(placewire.controller.agents.agents, "_LIMITS", limits)
    context, said = site.dial(), hello()
    request = b"POST /v1/hello HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n" % len(said) + said
    async with site.linked() as agents:
        made = []
        for _ in range(5):
            made.append(await asyncio.open_connection(
                "127.0.0.1", site.port, ssl=context, server_hostname="controller"
            ))  # fmt: skip
            made[-1][1].write(request)
            assert b" 200 " in await made[-1][0].readuntil(b"}"), "the newest is heard"
        for reader, _ in made[:2]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
        for reader, writer in made[2:]:
            writer.write(request)
            assert b" 200 " in await reader.readuntil(b"}")
            writer.close()
        assert site.notes == ["'s2' has more than 3 connections: its oldest is closed"]
        assert await agents.ask(
            "s1", ReadBack(generation=GENERATION), ReadBackResult, PATIENCE_SECONDS
        )


@given(
    st.lists(
        st.tuples(st.sampled_from(["in", "out"]), st.integers(0, 5), st.integers(0, 40)),
        max_size=200,
    )
)
def test_no_more_are_held_than_may_be_and_the_heaviest_address_pays(
    steps: list[tuple[str, int, int]],
) -> None:
    limits = Limits(unproven=12, unproven_each=5)
    unproven, held_now = Unproven[int](limits), dict[int, str]()
    for number, (what, host, which) in enumerate(steps):
        address = f"10.0.0.{host}"
        if what == "in":
            before = Counter(held_now.values())
            held_now[number] = address
            if (closed := unproven.add(address, number)) is not None:
                payer, connection = closed
                assert held_now.pop(connection) == payer
                own = [c for c, a in held_now.items() if a == payer]
                assert connection < min(own, default=number + 1), "its oldest"
                all_of = before + Counter([address])
                assert all_of[payer] == max(all_of.values()), "the heaviest"
        elif held_now:
            connection = sorted(held_now)[which % len(held_now)]
            unproven.remove(held_now.pop(connection), connection)
            unproven.remove(address, connection)
        counts = Counter(held_now.values())
        assert counts.total() <= 12 and max(counts.values(), default=0) <= 5


def test_half_of_few_descriptors_is_for_others() -> None:
    limits = Limits(2048, 1024).within(1024)
    assert (limits.unproven, limits.unproven_each) == (512, 256)
    assert Limits(2048, 1024).within(8192) == Limits(2048, 1024)


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
