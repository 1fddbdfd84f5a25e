"""Serves the address where servers ask for their first certificate while `controller enrol` waits.

The paths and messages are in agent/contract/enrolment.py.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from pydantic import ValidationError

from placewire.agent.contract.enrolment import (
    LARGEST_REQUEST_BYTES,
    CertificateAnswer,
    CertificateRequest,
)
from placewire.controller.agents.authority import Authority
from placewire.controller.agents.boot_clock import boot_seconds
from placewire.controller.agents.enrolment import Enrolment, EnrolmentRefusedError
from placewire.controller.agents.tls_listener import TlsListener, listener_at
from placewire.controller.agents.unproven import Limits
from placewire.controller.errors import UsageError

# A request is one small document; a client that sends for longer only occupies a connection.
_READ_SECONDS = 5.0
# A server asks twice, over one connection each; many servers may stand behind one router.
_LIMITS = Limits(unproven=1024, unproven_each=64)


@asynccontextmanager
async def listening(
    host: str,
    tcp_port: int,
    context: ssl.SSLContext,
    authority: Authority,
    enrolment: Enrolment,
    *,
    lifetime_seconds: float,
    on_enrolled: Callable[[str], None],
    on_refused: Callable[[str, str], None],
) -> AsyncIterator[None]:
    """Serves while the block runs. on_enrolled: called with each server that gets a certificate.
    on_refused: called with the address of each client that is turned away, and why. Raises
    UsageError where this process cannot listen there, such as when the address is taken."""

    async def give_authority(request: web.Request) -> web.Response:
        return web.Response(text=authority.certificate_file.read_text())

    async def give_certificate(request: web.Request) -> web.Response:
        # A socket for IPv4 and IPv6 writes an IPv4 address in this way.
        peer = (request.remote or "").removeprefix("::ffff:")
        try:
            async with asyncio.timeout(_READ_SECONDS):
                body = await request.read()
        except OSError as error:
            on_refused(peer, "it sent no whole request for a certificate, or hung up")
            raise web.HTTPBadRequest(text="this is no whole request") from error
        except web.HTTPRequestEntityTooLarge:
            on_refused(peer, f"it sent more than {LARGEST_REQUEST_BYTES} bytes")
            raise
        try:
            asked = CertificateRequest.model_validate_json(body)
            server = enrolment.server_of(asked.token or "", peer, boot_seconds())
            # No `await` comes before `enrolled.add`: a second request finds the token used.
            chain = authority.sign(asked.request_pem, server, lifetime_seconds=lifetime_seconds)
            enrolment.enrolled.add(server)
        except (EnrolmentRefusedError, UsageError) as error:
            on_refused(peer, str(error))
            raise web.HTTPForbidden(text="refused; the controller says why") from error
        except ValidationError as error:
            on_refused(peer, "it sent no valid request for a certificate")
            raise web.HTTPBadRequest(text="this is no valid request for a certificate") from error
        on_enrolled(server)
        return web.json_response(CertificateAnswer(chain_pem=chain.decode()).model_dump())

    application = web.Application(client_max_size=LARGEST_REQUEST_BYTES)
    application.router.add_get("/v1/authority", give_authority)
    application.router.add_post("/v1/certificate", give_certificate)
    try:
        listener = listener_at(host, tcp_port)
    except OSError as error:
        raise UsageError(
            f"cannot listen: {error.strerror or error}",
            where=f"{host}:{tcp_port}",
            remedy="another program has this port, such as another enrolment; end one of them",
        ) from error
    # Nobody shows a certificate here, so no connection outlives the time for one request.
    tls = TlsListener(context, lambda transport: "", on_refused, _LIMITS)
    async with tls.serving(application, listener, shutdown_timeout=_READ_SECONDS):
        yield
