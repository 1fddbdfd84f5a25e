"""Connections with mutual TLS, accepted so that a handshake that fails is told with its peer.

asyncio's own server drops such a connection without a word: an agent whose certificate has expired
would look like one that does not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

# A client that has not proved itself by then keeps a connection for its own sake.
HANDSHAKE_SECONDS = 10.0
# All agents of a cluster may dial in one moment, and each once more to see whether we listen.
_BACKLOG = 4096
# Where this process has no file descriptors left: others may be closed meanwhile.
_PAUSE_SECONDS = 0.1

_WORDS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS 1.3",
    "HTTP_REQUEST": "it speaks no TLS",
    "WRONG_VERSION_NUMBER": "it speaks no TLS",
}


@asynccontextmanager
async def accepting(
    host: str,
    tcp_port: int,
    context: ssl.SSLContext,
    protocol: Callable[[], asyncio.BaseProtocol],
    on_refused: Callable[[str, str], None],
) -> AsyncIterator[None]:
    """Whoever passes the handshake gets a `protocol`. on_refused: told the address of whoever does
    not, and why. Raises OSError where it cannot listen there."""
    handshakes: set[asyncio.Task[None]] = set()

    async def greet(connection: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:
            if (why := _why(error)) is not None:
                on_refused(address, why)

    async def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, peer = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            task = asyncio.create_task(greet(connection, peer[0]))
            handshakes.add(task)
            task.add_done_callback(handshakes.discard)

    with socket.create_server((host, tcp_port), backlog=_BACKLOG) as listener:
        listener.setblocking(False)
        accepted = asyncio.create_task(accept(listener))
        try:
            yield
        finally:
            # asyncio would give who dials in this very moment to the task that is cancelled.
            asyncio.get_running_loop().remove_reader(listener)
            for task in (accepted, *handshakes):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(accepted, *handshakes, return_exceptions=True)


def _why(error: OSError) -> str | None:
    """None where the other side only hung up: agents look whether somebody listens."""
    if isinstance(error, ssl.SSLEOFError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not hold: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _WORDS.get(reason, f"no TLS handshake: {reason.replace('_', ' ').lower()}")
    if isinstance(error, ConnectionAbortedError):
        return f"no TLS handshake within {HANDSHAKE_SECONDS:g} s"
    return None
