"""Accepts TLS connections within limits, and reports each peer that is turned away, and why.

asyncio's own server drops a failed handshake silently, so that an agent whose certificate has
expired would look like an agent that does not run. It also holds a peer that says nothing for as
long as that peer likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import http, web

from placewire.controller.agents.unproven import Limits, Unproven
from placewire.descriptors import raised_limit

# A plan has at most 2000 servers. Their agents have two connections each, as many peers again may
# have shown nothing yet, and ranks, logs and the journal need some more.
DESCRIPTORS = 8192
# A client that takes longer only occupies a connection.
HANDSHAKE_SECONDS = 10.0
# For the header of the first request, once the handshake is done.
HEADER_SECONDS = 10.0
# For a peer's last words where we end a connection.
_GOODBYE_SECONDS = 2.0
# A connection over which nothing is asked for so long is closed. Clients close theirs sooner.
_IDLE_SECONDS = 60.0
# A peer dials anew after so long, so that both ends show the certificates that they have by then.
LONGEST_SECONDS = 3600.0
# All agents of a cluster may dial at once, each a second time to test whether we listen.
_BACKLOG = 4096
# The pause where this process has no file descriptors left: some may be closed meanwhile.
_PAUSE_SECONDS = 0.1

_WORDS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "HTTP_REQUEST": "it does not speak TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
}


def listener_at(host: str, tcp_port: int) -> socket.socket:
    """Raises OSError where this process cannot listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, tcp_port), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


class TlsListener:
    """name_of: says, by its transport, whose certificate a peer has shown; "": nobody's, so that it
    stays unproven. limits: of connections; fewer where this process may have few descriptors.
    on_refused: called with the address of each peer that is turned away, and why."""

    def __init__(
        self,
        context: ssl.SSLContext,
        name_of: Callable[[asyncio.BaseTransport], str],
        on_refused: Callable[[str, str], None],
        limits: Limits,
    ) -> None:
        self._context, self._name_of, self._tell = context, name_of, on_refused
        self._limits = limits.within(raised_limit(DESCRIPTORS))
        self._unproven = Unproven[_Connection](self._limits)
        # By certificate's name, the oldest first.
        self._open_of: dict[str, OrderedDict[_Connection, None]] = {}
        self._by_transport: dict[asyncio.BaseTransport, _Connection] = {}
        self._greeting: set[asyncio.Task[None]] = set()
        self._serves = True

    @asynccontextmanager
    async def serving(
        self,
        application: web.Application,
        listener: socket.socket,
        *,
        before_end: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> AsyncIterator[None]:
        """Serves while the block runs; closes the listener. before_end: called when nobody can
        connect any more, and before open connections are closed. options: of web.AppRunner."""
        application.middlewares.append(self._heard)
        runner = web.AppRunner(
            application,
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            # What a message's length says must hold for what is read of it.
            auto_decompress=False,
            **options,
        )
        await runner.setup()
        assert runner.server is not None, "set up"
        try:
            with listener:
                async with self._accepting(listener, runner.server):
                    yield
        finally:
            self._serves = False
            before_end()
            await runner.cleanup()

    @asynccontextmanager
    async def _accepting(self, listener: socket.socket, server: web.Server) -> AsyncIterator[None]:
        accepted = asyncio.create_task(self._accept(listener, server))
        try:
            yield
        finally:
            # Otherwise asyncio would hand a peer that dials at this moment to the cancelled task.
            asyncio.get_running_loop().remove_reader(listener)
            for task in (accepted, *self._greeting):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(accepted, *self._greeting, return_exceptions=True)

    @web.middleware
    async def _heard(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        """The header of a request is complete: its peer is not silent."""
        transport = request.transport
        one = None if transport is None else self._by_transport.get(transport)
        if one is not None:
            one.has_asked = True

        def close_if_old(answer: web.StreamResponse) -> None:
            if one is not None and time.monotonic() - one.since_seconds > LONGEST_SECONDS:
                answer.force_close()

        try:
            answer: web.StreamResponse = await handler(request)
        except web.HTTPException as refusal:
            close_if_old(refusal)
            raise
        close_if_old(answer)
        return answer

    async def _accept(self, listener: socket.socket, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            # A socket for IPv4 and IPv6 writes an IPv4 address with this prefix.
            connection = _Connection(self, str(peer[0]).removeprefix("::ffff:"))
            connection.greeting = asyncio.create_task(self._greet(connection, accepted, server))
            self._greeting.add(connection.greeting)
            connection.greeting.add_done_callback(self._greeting.discard)
            lifetime_seconds = HANDSHAKE_SECONDS + HEADER_SECONDS
            connection.deadline = loop.call_later(lifetime_seconds, connection.is_late)
            if (excess := self._unproven.add(connection.address, connection)) is not None:
                address, other = excess
                other.close()
                self.refused(address, "too many connections that show no certificate or token")
            # Where many wait to be accepted, agents that are in have their turn all the same.
            await asyncio.sleep(0)

    async def _greet(
        self, connection: _Connection, accepted: socket.socket, server: web.Server
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Observed(_noting(server(), connection), connection),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_GOODBYE_SECONDS,
            )
        except OSError as error:
            connection.is_lost()
            if (why := _why(error)) is not None:
                self.refused(connection.address, why)
        except asyncio.CancelledError:
            connection.is_lost()
            raise

    def refused(self, address: str, why: str) -> None:
        if self._serves:
            self._tell(address, why)

    def made(self, connection: _Connection, transport: asyncio.Transport) -> None:
        """The handshake is done."""
        self._by_transport[transport] = connection
        if not (name := self._name_of(transport)):
            return
        self._unproven.remove(connection.address, connection)
        connection.is_proven(name)
        own = self._open_of.setdefault(name, OrderedDict())
        own[connection] = None
        if len(own) > (most := self._limits.proven_each):
            # The newest stays: a server that lost power leaves connections open behind it.
            oldest = next(iter(own))
            oldest.close()
            why = f"{name!r} has more than {most} connections: its oldest is closed"
            self.refused(oldest.address, why)

    def forget(self, connection: _Connection) -> None:
        self._unproven.remove(connection.address, connection)
        if connection.transport is not None:
            self._by_transport.pop(connection.transport, None)
        if name := connection.name:
            connection.name = ""
            own = self._open_of[name]
            own.pop(connection, None)
            if not own:
                del self._open_of[name]


class _Connection:
    """One accepted connection. has_asked: whether a request came over it. name: of the certificate
    that it was made with; "": of none. since_seconds: when it was accepted, by the steady clock."""

    def __init__(self, of: TlsListener, address: str) -> None:
        self._of, self.address = of, address
        self.has_asked, self.since_seconds = False, time.monotonic()
        self.name = ""
        self.transport: asyncio.Transport | None = None
        self.greeting: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None

    def is_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._of.made(self, transport)

    def is_proven(self, name: str) -> None:
        """Once the handshake is done, the first request has a time of its own."""
        self.name = name
        if self.deadline is not None:
            self.deadline.cancel()
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(HEADER_SECONDS, self.is_late)

    def is_late(self) -> None:
        """Ends a connection over which nothing was asked, or which shows no certificate."""
        if self.has_asked and self.name:
            return
        has_asked = self.has_asked
        self.close()
        if not has_asked:
            self.is_refused("it sent no request in time")

    def is_refused(self, why: str) -> None:
        self._of.refused(self.address, why)

    def close(self) -> None:
        """Closes it at once: whoever shows nothing gets no time to say goodbye."""
        if self.transport is not None:
            self.transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()
        self.is_lost()

    def is_lost(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        self._of.forget(self)


class _Noting(logging.Handler):
    """Notes what aiohttp would log of one connection's requests: a peer that sends nonsense must
    not fill the operator's terminal with tracebacks."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._connection.is_refused(_unanswered(error))


def _noting(handler: web.RequestHandler, connection: _Connection) -> web.RequestHandler:
    # It has no parent: what is logged there goes nowhere else.
    handler.logger = logging.Logger("connection")
    handler.logger.addHandler(_Noting(connection))
    return handler


def _unanswered(error: BaseException) -> str:
    """Why a request could not be answered."""
    if isinstance(error, http.HttpProcessingError):
        return f"it sent no valid HTTP request ({type(error).__name__})"
    return f"its request could not be answered: {type(error).__name__}: {error}"


class _Observed(asyncio.Protocol):
    """Passes everything on to another protocol, and tells its connection when it is lost."""

    def __init__(self, inner: asyncio.Protocol, connection: _Connection) -> None:
        self._inner, self._connection = inner, connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._connection.is_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.is_lost()
        self._inner.connection_lost(exc)


def _why(error: OSError) -> str | None:
    """Why the handshake failed; None where the peer only hung up, as an agent does that only tests
    whether the controller listens."""
    if isinstance(error, ssl.SSLEOFError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _WORDS.get(reason, f"no TLS handshake: {reason.replace('_', ' ').lower()}")
    if isinstance(error, ConnectionAbortedError):
        return f"no TLS handshake within {HANDSHAKE_SECONDS:g} s"
    return None
