"""What the controller refuses of whoever dials it is told and recorded, and changes nothing.

Real sockets, certificates, link, service, keeper and files; the server is in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import placewire.controller.agents.tls_listener
import placewire.controller.change.change
from placewire.agent.contract.messages import (
    Poll,
    ReadBack,
    ReadBackResult,
    Welcome,
)
from placewire.controller.agents.authority import Authority, Issued
from placewire.controller.agents.refused_connections import RefusedConnections
from placewire.controller.errors import AgentProblem
from tests.controller.agents.link_site import (
    GENERATION,
    PATIENCE_SECONDS,
    Site,
    hello,
    patient_site,
    until,
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return patient_site(tmp_path, monkeypatch)


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
