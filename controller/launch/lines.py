"""Reads the lines that a program prints, of any number and length, without holding up the rest.

Whoever prints fast must not keep this process from its other work, such as renewing leases and
hearing Ctrl-C: the event loop has its turn after a bounded number of lines, and no more than a
bounded number of bytes is held. Where these are not read, the program waits in its own `print`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

from placewire.visible import last_state

# An event of a rank is a few hundred bytes; that of a large cluster's last step a few ten thousand.
LONGEST_LINE_BYTES = 2**20
# Stands at the end of a line that was cut, so that none of it passes for a whole one.
CUT = b" [the rest of this line is left out]"
# What people are shown of a line.
_LONGEST_TEXT = 16_384
_LINES_AT_ONCE = 32
_READ_BYTES = 65_536
# A StreamReader stops its source where it holds twice as much that nobody has read.
HELD_BYTES = 65_536
_ROOM_SECONDS = 1.0


async def lines_of(stream: asyncio.StreamReader, *, redraws: bool = False) -> AsyncIterator[bytes]:
    """Yields the stream's lines. One that is longer than LONGEST_LINE_BYTES is cut there. redraws:
    as in LineCutter."""
    cutter, passed = LineCutter(redraws=redraws), 0
    while data := await stream.read(_READ_BYTES):
        for line in cutter.lines(data):
            yield line
            passed += 1
            if passed % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # Reading what is there already waits for nothing.
    if rest := cutter.rest():
        yield rest


class LineCutter:
    """Cuts bytes that come in pieces into lines, each of which keeps its line break.

    redraws: whether only the last state of a line of progress is kept. Not of a stream that also
    has a rank's events: behind a `\\r`, what anybody prints would be a line of its own.
    """

    def __init__(self, *, redraws: bool = False) -> None:
        self._redraws = redraws
        self._line = bytearray()
        self._cut = False

    def lines(self, data: bytes) -> Iterator[bytes]:
        """Yields the lines that these bytes end."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._add(end)
            yield self.rest() + b"\n"
        self._add(rest)

    def rest(self) -> bytes:
        """Takes what there is of a line."""
        line = bytes(self._line) + (CUT if self._cut else b"")
        self._line.clear()
        self._cut = False
        return line

    def _add(self, part: bytes) -> None:
        joined = bytes(self._line[-1:]) + part
        if self._redraws and len(state := last_state(joined)) < len(joined):
            self._line.clear()
            self._cut, part = False, state
        room = LONGEST_LINE_BYTES - len(self._line)
        self._line += part[:room]
        self._cut = self._cut or len(part) > room


def text_of(line: bytes) -> str:
    """Returns a line for people, without its end, and cut where it is very long; of a line of
    progress its last state."""
    line = last_state(line)
    text = line[: 4 * _LONGEST_TEXT].decode(errors="replace").rstrip()
    if len(text) <= _LONGEST_TEXT and len(line) <= 4 * _LONGEST_TEXT:
        return text
    return text[:_LONGEST_TEXT] + CUT.decode()


class FedStream:
    """A stream that a thread feeds and the event loop reads. It holds little more than
    2 * HELD_BYTES; the thread waits where more comes than is read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._room = threading.Event()
        self._room.set()
        self._dropping = False
        self._valve = _Valve(self._room)
        self.reader = asyncio.StreamReader(limit=HELD_BYTES, loop=loop)
        self.reader.set_transport(self._valve)

    def feed(self, data: bytes) -> None:
        """To be called by the thread. Raises RuntimeError where the event loop is closed."""
        while not self._room.wait(_ROOM_SECONDS):
            if self._loop.is_closed():
                raise RuntimeError("the event loop is closed")
        if not self._dropping:
            self._room.clear()
            self._loop.call_soon_threadsafe(self._take, data)

    def end(self) -> None:
        """To be called by the thread, after all that it fed."""
        self._loop.call_soon_threadsafe(self.reader.feed_eof)

    def drop(self) -> None:
        """Drops what comes from now on, for a program that nobody reads any more."""
        self._dropping = True
        self._room.set()

    def _take(self, data: bytes) -> None:
        self.reader.feed_data(data)
        if self._dropping or not self._valve.is_closed:
            self._room.set()


class _Valve(asyncio.ReadTransport):
    """Is told by a StreamReader when it holds enough, and when it has room again."""

    def __init__(self, room: threading.Event) -> None:
        super().__init__()
        self._room = room
        self.is_closed = False

    def pause_reading(self) -> None:
        self.is_closed = True

    def resume_reading(self) -> None:
        self.is_closed = False
        self._room.set()
