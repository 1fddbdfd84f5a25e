"""A program that was started on a server over SSH, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

import paramiko

from placewire.controller.abandonable import abandonable
from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.lines import FedStream, lines_of
from placewire.controller.launch.programs import whole
from placewire.controller.launch.ssh_connection import SshServer, Started
from placewire.job.contract.specification import Hold

_CHUNK_BYTES = 65_536
_DRAIN_SECONDS = 5.0


class SshProgram:
    """A started program on a server, for asyncio: two threads read its output and its errors, no
    faster than the event loop takes them. Where it does not, sshd waits, and then the program.
    may_save: whether it has time to end also where the connection to it was lost."""

    def __init__(
        self, rank: int, on: SshServer, started: Started, *, may_save: bool = False
    ) -> None:
        self.rank, self.server = rank, on.name
        self._may_save = may_save
        self._on, self._started = on, started
        self._loop = asyncio.get_running_loop()
        self._output, self._errors = FedStream(self._loop), FedStream(self._loop)
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._errors_read = threading.Event()
        self._telling: threading.Thread | None = None
        for read in (self._read_output, self._read_errors):
            threading.Thread(target=read, name=f"ssh {self.server}", daemon=True).start()

    def output(self) -> AsyncIterator[bytes]:
        return lines_of(self._output.reader)

    async def whole_output(self) -> bytes:
        """Raises PlacewireError where that is more than an answer has."""
        return await whole(self._output.reader, self.server)

    def errors(self) -> AsyncIterator[bytes]:
        return lines_of(self._errors.reader, redraws=True)

    def tell(self, hold: Hold) -> None:
        """Writes from another thread: a server that takes nothing must not hold up the caller. It
        is told again where it did not take what it was told before."""
        if self._telling is None or not self._telling.is_alive():
            said = hold.model_dump_json().encode() + b"\n"
            self._telling = threading.Thread(target=self._write, args=[said], daemon=True)
            self._telling.start()

    def _write(self, said: bytes) -> None:
        with contextlib.suppress(OSError, paramiko.SSHException):
            self._started.channel.sendall(said)

    async def feed(self, given: bytes) -> None:
        """Sends the whole standard input, and closes it."""

        def send() -> None:
            with contextlib.suppress(OSError, paramiko.SSHException):  # it does not read all of it
                self._started.channel.sendall(given)
                self._started.channel.shutdown_write()

        await abandonable(send)

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    async def ended(self, seconds: float) -> None:
        """Waits for the end, but no longer than this."""
        await asyncio.wait({self._exit}, timeout=seconds)

    def terminate(self) -> None:
        self._tell_server(self._on.terminate)

    def kill(self) -> None:
        self.close()  # The caller may read no more.
        self._tell_server(self._on.kill)

    def close(self) -> None:
        """What still comes is dropped. Whoever reads it closes the connection at its end."""
        for stream in (self._output, self._errors):
            stream.drop()

    def _tell_server(self, tell: Callable[[Started], None]) -> None:
        """Signals from another thread, so that the caller does not wait for the server. Nor does
        the end of this process: whoever waits for the program's end has seen the signal arrive."""
        if not self._exit.done():
            sending = threading.Thread(
                target=self._tell_now, args=[tell], name=f"ssh {self.server}", daemon=True
            )
            sending.start()

    def _tell_now(self, tell: Callable[[Started], None]) -> None:
        with contextlib.suppress(LaunchFailed):  # the server is out of reach: the lease ends ranks
            tell(self._started)

    def _read_output(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody reads any more
            self._pump(self._started.channel.recv, self._output)
            status = self._started.status()
            if self._started.is_lost():
                self._tell_now(self._on.end if self._may_save else self._on.kill)
                lost = f"the SSH connection to {self.server} was lost\n".encode()
                self._output.feed(lost)
            self._output.end()
            self._loop.call_soon_threadsafe(self._exit.set_result, status)
        self._errors_read.wait(_DRAIN_SECONDS)
        self._started.close()

    def _read_errors(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._pump(self._started.channel.recv_stderr, self._errors)
            self._errors.end()
        self._errors_read.set()

    def _pump(self, receive: Callable[[int], bytes], stream: FedStream) -> None:
        with contextlib.suppress(OSError):
            while data := receive(_CHUNK_BYTES):
                stream.feed(data)
