"""A proxy between agents and the controller that can be cut, which ends every connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Cable:
    """After listen(), agents dial `url`."""

    def __init__(self, host: str, tcp_port: int) -> None:
        self._far = host, tcp_port
        self._whole = True
        self._ends: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def listen(self) -> None:
        server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def cut(self, seconds: float) -> None:
        """Ends all connections, and lets nobody through for so many seconds."""
        self._whole = False
        for end in self._ends:
            end.transport.abort()
        await asyncio.sleep(seconds)
        self._whole = True

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._far)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._ends |= ends
        try:
            await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))
        finally:
            self._ends -= ends


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
