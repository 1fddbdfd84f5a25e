"""Hosts that only hold connections open keep no agent out.

Real sockets, certificates, link, service, keeper and files; the server is in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import placewire.controller.agents.tls_listener
import placewire.controller.change.change
from placewire.agent.contract.messages import (
    ReadBack,
    ReadBackResult,
)
from placewire.controller.agents.unproven import Limits, Unproven
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
    monkeypatch.setattr(placewire.controller.agents.tls_listener, "DESCRIPTORS", 200)
    with descriptors(200):
        async with site.linked() as agents:
            with held(site, 400):
                await until(lambda: site.notes)
                asked = ReadBack(generation=GENERATION)
                assert await agents.ask("s1", asked, ReadBackResult, PATIENCE_SECONDS)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert (await site.post("hello", hello()))[0] == 200, "another comes in"
        assert site.notes == ["too many connections that show no certificate or token"]


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
