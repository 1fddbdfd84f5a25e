"""Tests enrolment over real sockets: a token gives one certificate, and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import serialization

import placewire.controller.agents.enrolment_listener
import placewire.controller.agents.revocations
import placewire.controller.agents.tls_listener
from placewire.agent.connection.controller_connection import ControllerConnection, tls_context
from placewire.agent.connection.enrol import EnrolmentError, enrol
from placewire.agent.connection.identity import keep, new_key, seconds_to_half_life
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.enrolment import CertificateRequest, Token, parse_token
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import LeaseState
from placewire.agent.service import Service
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority, server_context
from placewire.controller.agents.boot_clock import boot_seconds
from placewire.controller.agents.enrolment import Enrolment, EnrolmentRefusedError
from placewire.controller.agents.enrolment_listener import listening
from placewire.controller.agents.refused_connections import RefusedConnections
from placewire.controller.agents.revocations import Bearer, Revocations
from placewire.controller.cli import main, parser
from placewire.controller.errors import UsageError
from tests.controller.plans import capabilities
from tests.free_port import free_port
from tests.paths import ROOT

LIFETIME_SECONDS = 3600.0
LEASE = LeaseState(phase="idle", generation=0, highest_generation=0)
LISTENS_SECONDS = 120.0
PATIENCE_SECONDS = 60.0


class Site:
    """A controller, and servers' folders beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.load(folder / "ca")
        self.port, self.link_port = free_port(), free_port()
        self.refused: list[str] = []
        self.enrolment = self.expecting({"s1": None})

    def expecting(self, addresses: dict[str, str | None], valid: float = 60.0) -> Enrolment:
        self.enrolment = Enrolment(self.authority.sha256, addresses, boot_seconds() + valid)
        return self.enrolment

    def turn_away(self, address: str, why: str) -> None:
        self.refused.append(f"{address}: {why}")

    @property
    def requests_refused(self) -> list[str]:
        """Without those who hung up in the handshake: the agent does so when it sees a stranger,
        and whether the controller still learns of it depends on who is faster."""
        return [told for told in self.refused if "no TLS handshake" not in told]

    @asynccontextmanager
    async def waiting(self, authority: Authority | None = None) -> AsyncIterator[None]:
        who = authority or self.authority
        issued = who.issue("controller", "controller", self.folder / "tls", lifetime_seconds=3600)
        context = server_context(who.certificate_file, issued, agents_only=False)
        async with listening(
            "127.0.0.1", self.port, context, who, self.enrolment,
            lifetime_seconds=LIFETIME_SECONDS, on_enrolled=lambda server: None,
            on_refused=self.turn_away,
        ):  # fmt: skip
            yield

    def config(self, server: str) -> AgentConfig:
        state = self.folder / server
        state.mkdir(exist_ok=True)
        return AgentConfig(
            server=server,
            controller_url=f"https://127.0.0.1:{self.link_port}",
            certificate_file=str(state / "agent.pem"),
            key_file=str(state / "agent.pem"),
            authority_file=str(state / "authority.crt"),
            state_dir=str(state),
        )

    async def enrol(self, server: str, token: str) -> AgentConfig:
        config = self.config(server)
        await asyncio.to_thread(enrol, config, f"127.0.0.1:{self.port}", token)
        return config


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    # A busy machine may hold this process up for long, and with it both ends of each connection.
    for name in ("HANDSHAKE_SECONDS", "HEADER_SECONDS"):
        monkeypatch.setattr(placewire.controller.agents.tls_listener, name, LISTENS_SECONDS)
    return Site(tmp_path)


async def hello_status(site: Site, config: AgentConfig) -> int:
    """The HTTP status that the link answers to a hello with this server's certificate."""
    hello = Hello(
        server=config.server, agent_pid=1, capabilities=capabilities(),
        lease=LEASE,
    )  # fmt: skip
    connector = aiohttp.TCPConnector(ssl=tls_context(config))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.post(
            f"{config.controller_url}/v1/hello",
            data=hello.model_dump_json(),
            server_hostname="controller",
        ) as response,
    ):
        return response.status


async def test_a_token_gives_a_certificate_that_opens_the_link(site: Site) -> None:
    token = site.enrolment.new_token("s1")
    async with site.waiting():
        config = await site.enrol("s1", token.text)
    assert site.enrolment.missing == [] and site.refused == []
    file = Path(config.certificate_file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert LIFETIME_SECONDS / 2 - 200 < seconds_to_half_life(file) < LIFETIME_SECONDS / 2
    async with Agents.listening("127.0.0.1", site.link_port, site.authority):
        assert await hello_status(site, config) == 200


async def test_a_token_is_good_once(site: Site) -> None:
    token = site.enrolment.new_token("s1").text
    async with site.waiting():
        config = await site.enrol("s1", token)
        first = Path(config.certificate_file).read_bytes()
        with pytest.raises(EnrolmentError, match="403"):
            await site.enrol("s1", token)
    assert Path(config.certificate_file).read_bytes() == first, "what there was is untouched"
    assert "was used before" in site.refused[0]
    assert token.rsplit(".", 1)[1] not in " ".join(site.refused)


async def test_a_token_that_has_expired_or_was_replaced_is_refused(site: Site) -> None:
    replaced = site.enrolment.new_token("s1").text
    site.enrolment.new_token("s1")
    async with site.waiting():
        with pytest.raises(EnrolmentError):
            await site.enrol("s1", replaced)
    late = site.expecting({"s1": None}, valid=-1.0).new_token("s1").text
    async with site.waiting():
        with pytest.raises(EnrolmentError):
            await site.enrol("s1", late)
    assert "was given last" in site.refused[0] and "has expired" in site.refused[1]
    assert not Path(site.config("s1").certificate_file).exists()


async def test_a_token_is_bound_to_its_server_and_its_address(site: Site) -> None:
    site.expecting({"s1": "192.0.2.1", "s2": "127.0.0.1"})
    first, second = (site.enrolment.new_token(name).text for name in ("s1", "s2"))
    async with site.waiting():
        with pytest.raises(EnrolmentError, match="for 's2', this server is 's1'"):
            await site.enrol("s1", second)
        with pytest.raises(EnrolmentError, match="403"):
            await site.enrol("s1", first)
        await site.enrol("s2", second)
    assert site.refused == [
        "127.0.0.1: the token of 's1' came from 127.0.0.1, but is valid only from 192.0.2.1"
    ]


async def test_a_token_ages_while_the_controller_s_machine_sleeps(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boot clock goes on in a suspend, and the monotonic one does not."""
    site.expecting({"s1": None}, valid=900.0)
    token, boot_clock = site.enrolment.new_token("s1").text, time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: boot_clock(clock) + 1000.0)
    async with site.waiting():
        with pytest.raises(EnrolmentError):
            await site.enrol("s1", token)
    assert site.refused == ["127.0.0.1: the token of 's1' has expired"]


async def test_another_controller_gets_no_token(site: Site, tmp_path: Path) -> None:
    """An agent first asks for the authority, and sends its token to no other than the expected."""
    token = site.enrolment.new_token("s1").text
    stranger = Authority.load(tmp_path / "stranger")
    async with site.waiting(stranger):
        with pytest.raises(EnrolmentError, match="Nothing was sent to it"):
            await site.enrol("s1", token)
    assert site.requests_refused == [], "it was sent no token"
    assert not Path(site.config("s1").authority_file).exists()


async def test_an_authority_that_brings_another_along_is_not_trusted_with_it(
    site: Site, tmp_path: Path
) -> None:
    """An attacker sends the right authority's public certificate, followed by its own."""
    site.expecting({"s1": None})
    token = site.enrolment.new_token("s1").text
    stranger = Authority.load(tmp_path / "stranger")
    real = site.authority.certificate_file.read_text()
    shown = stranger.certificate_file
    both = tmp_path / "both.crt"
    both.write_text(real + shown.read_text())
    stranger.certificate_file = both
    issued = stranger.issue("controller", "controller", tmp_path / "tls", lifetime_seconds=60)
    chain = issued.certificate_file.read_text().replace(real, "")
    issued.certificate_file.write_text(chain)
    context = server_context(shown, issued, agents_only=False)
    async with listening(
        "127.0.0.1", site.port, context, stranger, site.enrolment,
        lifetime_seconds=LIFETIME_SECONDS, on_enrolled=lambda server: None,
        on_refused=site.turn_away,
    ):  # fmt: skip
        with pytest.raises(EnrolmentError):
            await site.enrol("s1", token)
    assert site.enrolment.missing == ["s1"]
    assert site.requests_refused == [], "it was sent no token"
    kept = Path(site.config("s1").authority_file)
    assert not kept.exists() or kept.read_text().count("BEGIN CERTIFICATE") == 1


async def test_of_many_requests_with_one_token_one_is_answered(site: Site) -> None:
    token = site.enrolment.new_token("s1").text
    asked = CertificateRequest(request_pem=new_key("s1").request_pem, token=token)
    async with site.waiting(), aiohttp.ClientSession() as http:

        async def ask() -> int:
            url = f"https://127.0.0.1:{site.port}/v1/certificate"
            async with http.post(url, data=asked.model_dump_json(), ssl=False) as response:
                return response.status

        statuses = await asyncio.gather(*(ask() for _ in range(5)))
    assert sorted(statuses) == [200, 403, 403, 403, 403]


def test_a_torn_line_and_an_unnoted_certificate_are_denied_over(site: Site) -> None:
    """A full disk tore a line of issued.jsonl; another certificate was never recorded there."""
    site.authority.sign(new_key("s1").request_pem, "s1", lifetime_seconds=600)
    notes = site.folder / "ca" / "issued.jsonl"
    notes.write_bytes(notes.read_bytes() + b'{"name": "s1", "ser')
    site.authority.sign(new_key("s1").request_pem, "s1", lifetime_seconds=600)
    assert site.authority.revocations.deny("s1") == 2
    long_ago = Bearer("s1", "12345", time.time() - 60)
    assert site.authority.revocations.is_denied(long_ago)
    assert not site.authority.revocations.is_denied(Bearer("s2", "12345", time.time() - 60))
    assert not site.authority.revocations.is_denied(Bearer("s1", "6789", time.time()))


def test_a_long_list_of_denied_certificates_is_read_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message of every agent asks for it."""
    reads: list[object] = []
    read = placewire.controller.agents.revocations._read
    monkeypatch.setattr(
        placewire.controller.agents.revocations,
        "_read",
        lambda *of: reads.append(of) or read(*of),  # type: ignore[func-returns-value]
    )
    old, another = (Bearer(name, "12345", time.time() - 60) for name in ("s1", "s2"))
    revocations = site.authority.revocations
    assert not revocations.is_denied(old)
    Revocations(site.folder / "ca").deny("s1")
    reads.clear()
    for _ in range(100):
        assert revocations.is_denied(old) and not revocations.is_denied(another)
    assert len(reads) == 1
    Revocations(site.folder / "ca").deny("s2")
    assert revocations.is_denied(another), "another process denied it"


async def test_who_renews_again_at_once_gets_no_second_certificate(site: Site) -> None:
    """Each takes a line of the authority's record, which is never shortened."""
    config = site.config("s1")
    file, key = Path(config.certificate_file), new_key("s1")
    chain = site.authority.sign(key.request_pem, "s1", lifetime_seconds=250).decode()
    Path(config.authority_file).write_bytes(site.authority.certificate_file.read_bytes())
    keep(file, key.key_pem, chain, like=site.folder)
    asked = CertificateRequest(request_pem=new_key("s1").request_pem).model_dump_json()
    record = site.folder / "ca" / "issued.jsonl"
    before = len(record.read_bytes().splitlines())
    url, statuses = f"https://127.0.0.1:{site.link_port}/v1/certificate", []
    async with Agents.listening("127.0.0.1", site.link_port, site.authority):
        connector = aiohttp.TCPConnector(ssl=tls_context(config))
        async with aiohttp.ClientSession(connector=connector) as http:
            for _ in range(5):
                async with http.post(url, data=asked, server_hostname="controller") as answer:
                    statuses.append(answer.status)
    assert statuses == [200, 403, 403, 403, 403]
    assert len(record.read_bytes().splitlines()) == before + 1


def test_a_denied_certificate_renews_nothing(site: Site) -> None:
    site.authority.revocations.deny("s1")
    bearer = Bearer("s1", "12345", time.time() - 60)
    with pytest.raises(UsageError, match="is denied"):
        site.authority.sign(new_key("s1").request_pem, "s1", lifetime_seconds=60, renews=bearer)


@pytest.mark.parametrize("body", [b"", b"{}", b"[" * 5000, b"x" * 100_000, b'{"request_pem": "-"}'])
async def test_what_is_no_request_is_refused_and_uses_nothing_up(site: Site, body: bytes) -> None:
    token = site.enrolment.new_token("s1").text
    async with site.waiting():
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        url = f"https://127.0.0.1:{site.port}/v1/certificate"
        async with aiohttp.ClientSession() as http, http.post(
            url, data=body, ssl=unverified
        ) as response:  # fmt: skip
            assert 400 <= response.status < 500
        assert len(site.refused) == 1, "and noted"
        await site.enrol("s1", token)


async def test_a_request_that_never_ends_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placewire.controller.agents.enrolment_listener, "_READ_SECONDS", 0.3)
    async with site.waiting():
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=unverified)
        writer.write(b"POST /v1/certificate HTTP/1.1\r\nHost: c\r\nContent-Length: 900\r\n\r\n{")
        line = await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
        writer.close()
    assert b"400" in line


async def test_who_does_not_pass_the_handshake_is_told(site: Site) -> None:
    async with site.waiting():
        _, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"GET /v1/authority HTTP/1.1\r\n\r\n")
        await writer.drain()
        await until(lambda: site.refused)
        writer.close()
        former = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        former.check_hostname, former.verify_mode = False, ssl.CERT_NONE
        former.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", site.port, ssl=former)
        await until(lambda: len(site.refused) == 2)
    assert site.refused == [
        "127.0.0.1: it does not speak TLS", "127.0.0.1: it does not speak TLS 1.3"
    ]  # fmt: skip


async def ask_badly(site: Site, data: bytes, *, resets: bool = False) -> None:
    """Sends this over TLS, without a certificate. resets: hangs up at once, without a goodbye."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=unverified)
    writer.write(data)
    await writer.drain()
    if resets:
        await asyncio.sleep(0.1)
        writer.transport.abort()
        return
    with contextlib.suppress(OSError):
        await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    writer.close()


async def test_what_is_no_http_is_noted_and_fills_no_terminal(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    refused = RefusedConnections(site.folder / "refused.jsonl", site.refused.append)
    site.turn_away = refused.note  # type: ignore[method-assign]
    async with site.waiting():
        for _ in range(3):
            await ask_badly(site, b"GET / HTTP/1.1\r\nX: y" + b"\x01" * 8000 + b"\r\n\r\n")
        await ask_badly(site, b"no request at all\r\n\r\n")
    assert caplog.records == []
    assert len(site.refused) == 2, site.refused
    assert all("127.0.0.1: it sent no valid HTTP request (" in line for line in site.refused)
    assert (site.folder / "refused.jsonl").read_text().count("no valid HTTP request") == 2


async def test_who_hangs_up_within_a_request_is_noted(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    begun = b"POST /v1/certificate HTTP/1.1\r\nHost: c\r\nContent-Length: 900\r\n\r\n{"
    async with site.waiting():
        await ask_badly(site, begun, resets=True)
        await until(lambda: site.refused)
    assert caplog.records == []
    assert site.refused == ["127.0.0.1: it sent no whole request for a certificate, or hung up"]


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        ("06072a8648ce3d0201", "06072a8648ce3d027f"),  # The kind of key.
        ("06082a8648ce3d030107", "06082a8648ce3d03017f"),  # The curve.
        ("020100", "020107"),  # The version.
    ],
)
def test_a_request_of_an_unknown_kind_is_refused(site: Site, known: str, unknown: str) -> None:
    pem = new_key("s1").request_pem
    der = x509.load_pem_x509_csr(pem.encode()).public_bytes(serialization.Encoding.DER)
    assert bytes.fromhex(known) in der
    odd = ssl.DER_cert_to_PEM_cert(der.replace(bytes.fromhex(known), bytes.fromhex(unknown), 1))
    with pytest.raises(UsageError, match="no request for a certificate"):
        site.authority.sign(
            odd.replace("CERTIFICATE", "CERTIFICATE REQUEST"), "s1", lifetime_seconds=60
        )


async def test_a_token_is_not_used_up_for_a_certificate_that_is_denied_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was two hours ahead when the server was denied."""
    real = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: real() + 7200)
        site.authority.revocations.deny("s1")
    token = site.enrolment.new_token("s1").text
    async with site.waiting():
        with pytest.raises(EnrolmentError):
            await site.enrol("s1", token)
        assert "controller authority deny s1" in site.refused[0]
        site.authority.revocations.deny("s1")
        await site.enrol("s1", token)


async def test_idle_connections_keep_no_server_out(site: Site) -> None:
    """So many as the process may have descriptors, from the server's own address even."""
    token = site.enrolment.new_token("s1").text
    async with site.waiting():
        idle = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(200)]
        await until(lambda: site.refused)
        ended = [asyncio.create_task(reader.read()) for reader, _ in idle]
        await until(lambda: sum(one.done() for one in ended) >= 200 - 64)
        assert sum(one.done() for one in ended) == 200 - 64
        await site.enrol("s1", token)
        for _, writer in idle:
            writer.close()
        await asyncio.gather(*ended, return_exceptions=True)
    assert set(site.refused) == {
        "127.0.0.1: too many connections that show no certificate or token"
    }


async def test_a_header_that_never_ends_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, passed = asyncio.get_running_loop(), 0.0
    usual = loop.time
    monkeypatch.setattr(loop, "time", lambda: usual() + passed)
    async with site.waiting():
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=unverified)
        writer.write(b"POST /v1/certificate HTTP/1.1\r\nHost: c\r\nX-Slow: x")
        passed = 2 * LISTENS_SECONDS
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
        writer.close()
    assert site.refused == ["127.0.0.1: it sent no request in time"]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_an_authority_is_fetched_over_no_former_tls(site: Site) -> None:
    """The controller's side would refuse it, too; this one is an attacker's, who has the public
    certificate of the right authority."""
    token = site.enrolment.new_token("s1").text
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text=site.authority.certificate_file.read_text())

    issued = site.authority.issue(
        "controller", "controller", site.folder / "tls", lifetime_seconds=3600
    )
    context = server_context(site.authority.certificate_file, issued, agents_only=False)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", site.port, ssl_context=context).start()
        with pytest.raises(EnrolmentError, match="no trusted connection"):
            await site.enrol("s1", token)
    finally:
        await runner.cleanup()
    assert asked == [], "not even the authority was asked for"


def test_the_authority_decides_what_a_certificate_is_for(site: Site) -> None:
    """A request cannot choose: its name must be the token's, and its key of the expected kind."""
    with pytest.raises(UsageError, match="another name"):
        site.authority.sign(new_key("controller").request_pem, "s1", lifetime_seconds=60)
    with pytest.raises(UsageError, match="no request"):
        site.authority.sign("nonsense", "s1", lifetime_seconds=60)


async def test_a_denied_certificate_is_turned_away_and_a_new_one_is_not(site: Site) -> None:
    token = site.enrolment.new_token("s1").text
    async with site.waiting():
        config = await site.enrol("s1", token)
    async with Agents.listening("127.0.0.1", site.link_port, site.authority):
        assert await hello_status(site, config) == 200
        assert site.authority.revocations.deny("s1") == 1
        assert await hello_status(site, config) == 403
        again = site.expecting({"s1": None}).new_token("s1").text
        async with site.waiting():
            config = await site.enrol("s1", again)
        assert await hello_status(site, config) == 200


async def test_an_agent_that_runs_uses_what_agent_enrol_wrote_beside_it(site: Site) -> None:
    """After a denial, and also where the authority is another one."""
    async with site.waiting():
        config = await site.enrol("s1", site.enrolment.new_token("s1").text)
    hello = Hello(server="s1", agent_pid=1, capabilities=capabilities(), lease=LEASE)
    link = ControllerConnection(config, create_autospec(Service), lambda: hello)
    running = asyncio.create_task(link.run())
    try:
        async with Agents.listening("127.0.0.1", site.link_port, site.authority) as agents:
            await agents.wait_for(["s1"], timeout_seconds=60)
            site.authority.revocations.deny("s1")
            await until(lambda: not link.linked.is_set())
            token = site.expecting({"s1": None}).new_token("s1").text
            async with site.waiting():
                await site.enrol("s1", token)
            await until(link.linked.is_set)
        site.authority = Authority.load(site.folder / "another")
        token = site.expecting({"s1": None}).new_token("s1").text
        async with site.waiting():
            await site.enrol("s1", token)
        async with Agents.listening("127.0.0.1", site.link_port, site.authority) as agents:
            await agents.wait_for(["s1"], timeout_seconds=60)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_files_that_cannot_be_used_are_told_once_and_change_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async with site.waiting():
        config = await site.enrol("s1", site.enrolment.new_token("s1").text)
    hello = Hello(server="s1", agent_pid=1, capabilities=capabilities(), lease=LEASE)
    link = ControllerConnection(config, create_autospec(Service), lambda: hello)
    running = asyncio.create_task(link.run())
    file = Path(config.certificate_file)
    whole = file.read_bytes()
    try:
        async with Agents.listening("127.0.0.1", site.link_port, site.authority) as agents:
            await agents.wait_for(["s1"], timeout_seconds=60)
        await until(lambda: not link.linked.is_set())
        file.write_bytes(whole[: len(whole) // 2])
        await until(lambda: "cannot be used" in caplog.text)
        async with Agents.listening("127.0.0.1", site.link_port, site.authority) as agents:
            await agents.wait_for(["s1"], timeout_seconds=60)
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert caplog.text.count("cannot be used") == 1 and str(file) in caplog.text


async def test_from_half_of_its_life_on_the_link_renews_the_certificate(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    config = site.config("s1")
    file, key = Path(config.certificate_file), new_key("s1")
    # It began 300 s ago (for late clocks) and lasts 250 s more, so more than half is over.
    chain = site.authority.sign(key.request_pem, "s1", lifetime_seconds=250).decode()
    Path(config.authority_file).write_bytes(site.authority.certificate_file.read_bytes())
    keep(file, key.key_pem, chain, like=site.folder)
    assert seconds_to_half_life(file) < 0
    hello = Hello(server="s1", agent_pid=1, capabilities=capabilities(), lease=LEASE)
    link = ControllerConnection(config, create_autospec(Service), lambda: hello)
    caplog.set_level(logging.INFO)
    async with Agents.listening("127.0.0.1", site.link_port, site.authority) as agents:
        running = asyncio.create_task(link.run())
        try:
            await agents.wait_for(["s1"], timeout_seconds=60)
            deadline = time.monotonic() + 60
            while "renewed" not in caplog.text and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        assert seconds_to_half_life(file) > 10 * 86_400, caplog.text
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert await hello_status(site, config) == 200, "the new one opens the link"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def agent_enrol(config_file: Path, place: str, token: str) -> subprocess.CompletedProcess[str]:
    words = command("placewire.agent.main", "enrol", "--config", str(config_file), place)
    return subprocess.run(
        words, input=token + "\n", capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.slow
def test_the_two_commands_and_what_they_tell(site: Site) -> None:
    """Runs `controller enrol` and `agent enrol` against each other, then `authority deny`."""
    state, place = site.folder / "state", f"127.0.0.1:{site.port}"
    config_file = site.folder / "agent.json"
    config_file.write_text(site.config("s1").model_dump_json())
    words = ["enrol", "s1=127.0.0.1", "--listen", place, "--state-dir", str(state)]
    nobody = agent_enrol(config_file, place, Token("s1", "0" * 64, "x").text)
    assert nobody.returncode == 1 and "is `controller enrol` waiting there?" in nobody.stderr
    waiting = subprocess.Popen(
        command("placewire.controller.cli", *words, "--tokens", str(site.folder / "tokens")),
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        assert waiting.stdout is not None
        assert "agent enrol" in waiting.stdout.readline()
        file = site.folder / "tokens" / "s1.token"
        assert waiting.stdout.readline() == f"s1: {file}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        done = agent_enrol(config_file, place, file.read_text())
        assert done.returncode == 0, done.stderr
        said, _ = waiting.communicate(timeout=300)
    finally:
        waiting.kill()
    assert waiting.returncode == 0 and said == "s1: enrolled\n"
    secret = parse_token(file.read_text()).secret
    assert secret not in said + done.stdout + done.stderr
    deny = command("placewire.controller.cli", "authority", "deny", "s1", "--state-dir", str(state))
    denied = subprocess.run(deny, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "1 of them are recorded here" in denied.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["s1=node1.example"], "no IPv4 address"),
        (["s1", "s1"], "named twice"),
        (["S1"], "is not a name"),
        (["s1", "--valid", "3 weeks"], "--valid"),
        (["s1", "--tokens", "/proc/none"], "a token cannot be written"),
    ],
)
def test_a_wrong_argument_is_said(
    site: Site, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--listen", f"127.0.0.1:{site.port}", "--state-dir", str(site.folder / "state")]
    with pytest.raises(SystemExit) as ended:
        main(["enrol", *words, *place])
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "seconds"),
    [([], 900.0), (["15m"], 900.0), (["15min"], 900.0), (["24h"], 86_400.0), (["90s"], 90.0)],
)
def test_a_token_is_valid_for_as_long_as_the_help_says(words: list[str], seconds: float) -> None:
    given = ["enrol", "s1", *(["--valid", *words] if words else [])]
    assert parser().parse_args(given).valid == seconds


def test_a_key_is_not_kept_with_another_s_certificate(site: Site) -> None:
    mine, other = new_key("s1"), new_key("s1")
    chain = site.authority.sign(other.request_pem, "s1", lifetime_seconds=60).decode()
    with pytest.raises(ValueError, match="for another key"):
        keep(site.folder / "agent.pem", mine.key_pem, chain, like=site.folder)
    assert not (site.folder / "agent.pem").exists()


@pytest.mark.parametrize("text", ["", "pw1.s1.00", "pw2.s1.00.x", "pw1...x", "a b c"])
def test_what_is_no_token_is_said_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match="no enrolment token") as refused:
        parse_token(text)
    assert not text or text not in str(refused.value)


def test_a_token_does_not_show_its_secret() -> None:
    token = Token("s1", "00", "sesame")
    assert parse_token(token.text) == token
    assert "sesame" not in repr(token)
    with pytest.raises(EnrolmentRefusedError):
        Enrolment("00", {"s1": None}, 1e9).server_of(token.text, "127.0.0.1", 0.0)


def test_files_with_keys_belong_to_their_owner_alone(site: Site) -> None:
    site.authority.sign(new_key("s1").request_pem, "s1", lifetime_seconds=60)
    site.authority.revocations.deny("s1")
    for name in ("authority.key", "issued.jsonl", "denied.json"):
        assert stat.S_IMODE((site.folder / "ca" / name).stat().st_mode) == 0o600, name
    assert os.access(site.authority.certificate_file, os.R_OK)
