"""Accepts the agents' TLS connections, and reports each handshake that fails, with its peer.

asyncio's own server drops a failed handshake silently, so that an agent whose certificate has
expired would look like an agent that does not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from placewire.controller.errors import CannotListen

# A client that takes longer only occupies a connection.
HANDSHAKE_SECONDS = 10.0
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


@asynccontextmanager
async def accepting(
    host: str,
    tcp_port: int,
    context: ssl.SSLContext,
    protocol: Callable[[], asyncio.BaseProtocol],
    on_refused: Callable[[str, str], None],
) -> AsyncIterator[None]:
    """Listens while the block runs. Each connection that passes the handshake gets a `protocol`.
    on_refused: called with the address of each peer that does not pass, and why. Raises
    CannotListen where this process cannot listen there."""
    handshakes: set[asyncio.Task[None]] = set()
    try:
        listener = socket.create_server((host, tcp_port), backlog=_BACKLOG)
    except OSError as error:
        raise CannotListen(
            f"cannot listen for agents: {error.strerror}",
            where=f"{host}:{tcp_port}",
            remedy="another controller may be running; wait for it, or give another --listen",
        ) from error

    async def greet(connection: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:
            if (why := _why(error)) is not None:
                on_refused(address, why)

    async def accept() -> None:
        while True:
            try:
                connection, peer = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            task = asyncio.create_task(greet(connection, peer[0]))
            handshakes.add(task)
            task.add_done_callback(handshakes.discard)

    with listener:
        listener.setblocking(False)
        accepted = asyncio.create_task(accept())
        try:
            yield
        finally:
            # Otherwise asyncio would hand a peer that dials at this moment to the cancelled task.
            asyncio.get_running_loop().remove_reader(listener)
            for task in (accepted, *handshakes):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(accepted, *handshakes, return_exceptions=True)


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
