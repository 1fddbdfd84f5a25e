"""Answers `GET /metrics` on a Unix socket, and on a port of the loopback.

Metrics are made for one request at a time. A request that is too slow or too large is hung up on.
Whatever fails while they are made is answered: who asks learns of it, and may ask again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from placewire.exposition import CONTENT_TYPE
from placewire.visible import visible

log = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
REQUEST_BYTES = 8192
MOST_CONNECTIONS = 16
LOOPBACK = "127.0.0.1"


def loopback_port(tcp_port: int) -> socket.socket:
    """A port of the loopback, of the network that this process is in now. Raises OSError."""
    port = socket.socket()
    try:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind((LOOPBACK, tcp_port))
        # Of two that are bound to one port only one may listen.
        port.listen()
    except OSError:
        port.close()
        raise
    return port


class NotKnownNow(Exception):
    """Says why the metrics cannot be made at this moment."""


class MetricsServer:
    """collect: makes the text; may raise NotKnownNow. say: told once of each defect in it. Who asks
    learns only that there is one: on a port that may be any user."""

    def __init__(self, collect: Callable[[], Awaitable[str]], say: Callable[[str], None]) -> None:
        self._collect, self._say = collect, say
        self._told: set[str] = set()
        self._collecting = asyncio.Lock()
        self._open = 0
        self._socket: Path | None = None
        self._servers: list[asyncio.Server] = []

    async def open_socket(self, path: Path, mode: int) -> None:
        """Replaces a socket that a killed process left, and no other file. Raises OSError."""
        server = await asyncio.start_unix_server(self._serve, path, limit=REQUEST_BYTES)
        self._servers.append(server)
        self._socket = path
        path.chmod(mode)

    async def open_port(self, port: socket.socket) -> None:
        """port: of `loopback_port`. Every user of this machine may ask there. Raises OSError."""
        server = await asyncio.start_server(self._serve, sock=port, limit=REQUEST_BYTES)
        self._servers.append(server)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.unlink()

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
                return _response("200 OK", await self._collect())
        except NotKnownNow as error:
            return _response("503 Service Unavailable", f"{visible(str(error))}\n")
        except Exception as error:  # A defect of ours.
            self._tell(error)
            return _response("500 Internal Server Error", "metrics cannot be made: a defect\n")

    def _tell(self, defect: Exception) -> None:
        frame = traceback.extract_tb(defect.__traceback__)[-1]
        where = f"{type(defect).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        if where not in self._told:
            self._told.add(where)
            self._say(f"metrics cannot be made, a defect: {where}: {visible(str(defect))}")


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
