"""A controller that listens, and servers in memory that dial it, for tests of what is refused.

Real sockets, certificates, link, service, keeper and files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import placewire.controller.agents.tls_listener
import placewire.controller.change.change
from placewire.agent.connection import controller_connection
from placewire.agent.contract.messages import (
    Hello,
)
from placewire.agent.contract.state import LeaseState
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority, Issued
from placewire.controller.agents.refused_connections import RefusedConnections
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


def patient_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """On which a busy machine may hold up both ends of each connection for long."""
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
    return Site(folder)


def hello(server: str = "s2", **changes: Any) -> bytes:
    said = Hello(server=server, agent_pid=1, capabilities=capabilities(), lease=LEASE)
    document = said.model_dump(mode="json") | changes
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)
