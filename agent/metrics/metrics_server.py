"""Answers `GET /metrics` on a Unix socket and, where the configuration says so, on the loopback.

Metrics are made for one request at a time. A request that is too slow or too large is hung up on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from placewire.agent.contract.config import AgentConfig
from placewire.agent.metrics.metrics import CONTENT_TYPE
from placewire.agent.reconcile.effects import EffectError

log = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
REQUEST_BYTES = 8192
MOST_CONNECTIONS = 16
# The agent's group may read.
SOCKET_MODE = 0o660
LOOPBACK = "127.0.0.1"


class MetricsServer:
    """collect: makes the text, in a thread; may raise EffectError."""

    def __init__(self, config: AgentConfig, collect: Callable[[], str]) -> None:
        self._path = Path(config.metrics_socket or f"{config.state_dir}/metrics.sock")
        self._tcp_port = config.metrics_tcp_port
        self._collect = collect
        self._collecting = asyncio.Lock()
        self._open = 0
        self._made = False
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Where it cannot listen, only logs why: an agent without metrics is still an agent."""
        try:
            # Replaces a socket that a killed agent left, and no other file.
            server = await asyncio.start_unix_server(self._serve, self._path, limit=REQUEST_BYTES)
            self._servers.append(server)
            self._made = True
            self._path.chmod(SOCKET_MODE)
        except OSError as error:
            log.error("metrics cannot be served at %s: %s", self._path, error)
        if self._tcp_port is None:
            return
        try:
            server = await asyncio.start_server(
                self._serve, LOOPBACK, self._tcp_port, limit=REQUEST_BYTES
            )
            self._servers.append(server)
        except OSError as error:
            place = f"{LOOPBACK} port {self._tcp_port}"
            log.error("metrics cannot be served at %s: %s", place, error)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._made:
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MOST_CONNECTIONS:
                async with asyncio.timeout(REQUEST_SECONDS):
                    writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            log.debug("a request for metrics was not finished")
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET":
            return _response("405 Method Not Allowed", "only GET\n")
        if words[1].split(b"?", 1)[0] not in (b"/metrics", b"/"):
            return _response("404 Not Found", "metrics are at /metrics\n")
        try:
            async with self._collecting:
                return _response("200 OK", await asyncio.to_thread(self._collect))
        except EffectError as error:
            return _response("503 Service Unavailable", f"{error}\n")


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
