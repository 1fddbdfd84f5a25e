"""The server side of the agent link: who is there, what they are asked, what they answer.

Agents dial in over mutual TLS and poll; a request waits here until its agent's next poll. A request
is handed over at most once: an agent that restarts while it has one is reported as unreachable, not
asked again, because half of the work may have been done.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent.contract.messages import (
    POLL_SECONDS,
    PROTOCOL_VERSION,
    Envelope,
    Envelopes,
    Hello,
    Poll,
    Reply,
    Request,
    Welcome,
)
from agent.contract.state import Refusal
from controller.ca import CONTROLLER_NAME, Authority, peer_name, server_context
from controller.errors import AgentProblem, AgentRefused, AgentUnreachable, UsageError

if TYPE_CHECKING:
    import ssl

    from aiohttp import web

ReplyType = TypeVar("ReplyType", bound=BaseModel)

# Without an open poll for this long, an agent is taken for gone.
SILENCE_SECONDS = 5.0
# Observations of a large server with thousands of queues are a few megabytes.
_LARGEST_MESSAGE_BYTES = 64 * 2**20
# This process lives as long as one command; its certificate need not live longer than a long job.
_CERTIFICATE_SECONDS = 30 * 86_400.0


@dataclass
class _Asked:
    envelope: Envelope
    answer: asyncio.Future[Reply]


@dataclass
class _Connection:
    """One server's agent. waiting: not handed over yet; pending: all without an answer, by id.

    heard: when a poll or reply last came or a poll last ended, by the loop's clock.
    """

    hello: Hello
    session: str
    heard: float
    open_polls: int = 0
    waiting: list[_Asked] = field(default_factory=list)
    pending: dict[str, _Asked] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def silent_seconds(self) -> float:
        return 0.0 if self.open_polls else time.monotonic() - self.heard

    def fail_handed_over(self, error: Exception) -> None:
        unsent = {asked.envelope.id for asked in self.waiting}
        for asked in list(self.pending.values()):
            if asked.envelope.id not in unsent and not asked.answer.done():
                asked.answer.set_exception(error)


class Agents:
    """hello: what each agent said of itself when it connected last, by server."""

    def __init__(self) -> None:
        self.hello: dict[str, Hello] = {}
        self._connections: dict[str, _Connection] = {}
        self._arrival = asyncio.Event()
        self._closing = False

    @classmethod
    @asynccontextmanager
    async def listening(
        cls, host: str, tcp_port: int, authority: Authority
    ) -> AsyncIterator[Agents]:
        """Serves the link while the block runs. Raises UsageError if it cannot listen there."""
        from aiohttp import web

        agents = cls()
        runner = web.AppRunner(
            agents._application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.05
        )
        await runner.setup()
        try:
            site = web.TCPSite(
                runner, host, tcp_port, ssl_context=_fresh_context(authority), reuse_address=True
            )
            try:
                await site.start()
            except OSError as error:
                raise UsageError(
                    f"cannot listen for agents: {error.strerror}",
                    where=f"{host}:{tcp_port}",
                    remedy="another controller may be running; wait for it, or give --listen",
                ) from error
            yield agents
        finally:
            agents._close()
            await runner.cleanup()

    async def wait_for(self, servers: Sequence[str], timeout_seconds: float) -> None:
        """Until the agents of all of these are there. Raises AgentUnreachable naming the rest."""
        deadline = time.monotonic() + timeout_seconds
        while missing := [server for server in servers if not self.present(server)]:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise AgentUnreachable(
                    missing, why=f"none of them dialled in within {timeout_seconds:g} s"
                )
            self._arrival.clear()
            try:
                await asyncio.wait_for(self._arrival.wait(), remaining)
            except TimeoutError:
                continue

    def present(self, server: str) -> bool:
        connection = self._connections.get(server)
        return connection is not None and connection.silent_seconds() < SILENCE_SECONDS

    async def ask(
        self, server: str, request: Request, reply_type: type[ReplyType], timeout_seconds: float
    ) -> ReplyType:
        """Raises AgentRefused with the agent's reason, or AgentUnreachable where it is not there,
        falls silent, restarts meanwhile, or does not answer in time."""
        connection = self._connections.get(server)
        if connection is None:
            raise AgentUnreachable([server], why="it has not dialled in")
        asked = _Asked(
            Envelope(id=uuid.uuid4().hex, body=request), asyncio.get_running_loop().create_future()
        )
        connection.pending[asked.envelope.id] = asked
        connection.waiting.append(asked)
        connection.news.set()
        try:
            reply = await self._answer(connection, asked, timeout_seconds)
        finally:
            connection.pending.pop(asked.envelope.id, None)
            connection.waiting = [a for a in connection.waiting if a is not asked]
        return _read(server, request, reply, reply_type)

    async def ask_all(
        self,
        requests: Mapping[str, Request],
        reply_type: type[ReplyType],
        timeout_seconds: float,
    ) -> dict[str, ReplyType]:
        """All at once, by server; every outcome is awaited before anything is raised. The exception
        carries the answers of those that did answer; unreachable goes before refused."""
        outcomes = await asyncio.gather(
            *(
                self.ask(server, request, reply_type, timeout_seconds)
                for server, request in requests.items()
            ),
            return_exceptions=True,
        )
        by_server = dict(zip(requests, outcomes, strict=True))
        answered = {s: o for s, o in by_server.items() if not isinstance(o, BaseException)}
        _raise_first({s: o for s, o in by_server.items() if isinstance(o, BaseException)}, answered)
        return answered

    async def _answer(
        self, connection: _Connection, asked: _Asked, timeout_seconds: float
    ) -> Reply:
        server, deadline = connection.hello.server, time.monotonic() + timeout_seconds
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise AgentUnreachable(
                    [server],
                    why=f"{asked.envelope.body.request}: no answer in {timeout_seconds:g} s",
                )
            silence = connection.silent_seconds()
            if silence >= SILENCE_SECONDS:
                raise AgentUnreachable([server], why=f"silent for {silence:.0f} s")
            done, _ = await asyncio.wait([asked.answer], timeout=min(0.25, remaining))
            if done:
                return asked.answer.result()

    def _application(self) -> web.Application:
        from aiohttp import web

        application = web.Application(client_max_size=_LARGEST_MESSAGE_BYTES)
        application.router.add_post("/v1/hello", self._on_hello)
        application.router.add_post("/v1/poll", self._on_poll)
        application.router.add_post("/v1/replies", self._on_reply)
        return application

    async def _on_hello(self, request: web.Request) -> web.Response:
        hello = await _parsed(request, Hello)
        if hello.version != PROTOCOL_VERSION:
            raise _refused(
                f"protocol version {hello.version}", hello.server,
                f"the controller speaks version {PROTOCOL_VERSION}: install the same release",
            )  # fmt: skip
        name = _peer(request)
        if hello.server != name:
            raise _refused(
                f"claims to be {hello.server!r}", f"certificate of {name!r}",
                "give the agent the name that its certificate was issued for",
            )  # fmt: skip
        before = self._connections.get(hello.server)
        connection = _Connection(hello, uuid.uuid4().hex, time.monotonic())
        if before is not None:
            self._take_over(before, connection)
        self._connections[hello.server] = connection
        self.hello[hello.server] = hello
        self._arrival.set()
        return _response(Welcome(session=connection.session))

    @staticmethod
    def _take_over(before: _Connection, connection: _Connection) -> None:
        """What the same process still works on, it will answer; a new process knows nothing."""
        if before.hello.agent_pid != connection.hello.agent_pid:
            before.fail_handed_over(
                AgentUnreachable([before.hello.server], why="it restarted meanwhile")
            )
        connection.waiting, connection.pending = before.waiting, before.pending
        connection.news.set()
        before.waiting, before.session = [], ""
        before.news.set()

    async def _on_poll(self, request: web.Request) -> web.Response:
        poll = await _parsed(request, Poll)
        connection = self._connection(request, poll.session)
        connection.open_polls += 1
        try:
            await self._news(connection)
            if connection.session != poll.session:
                raise _unknown_session()
            asked, connection.waiting = connection.waiting, []
            return _response(Envelopes(envelopes=tuple(a.envelope for a in asked)))
        finally:
            connection.open_polls -= 1
            connection.heard = time.monotonic()

    async def _news(self, connection: _Connection) -> None:
        if self._closing or connection.waiting:
            return
        connection.news.clear()
        try:
            await asyncio.wait_for(connection.news.wait(), POLL_SECONDS)
        except TimeoutError:
            return

    async def _on_reply(self, request: web.Request) -> web.Response:
        """A reply to something that nobody waits for any more is taken and dropped."""
        reply = await _parsed(request, Reply)
        connection = self._connections.get(_peer(request) or "")
        if connection is not None:
            connection.heard = time.monotonic()
            asked = connection.pending.get(reply.id)
            if asked is not None and not asked.answer.done():
                asked.answer.set_result(reply)
        return _empty()

    def _connection(self, request: web.Request, session: str) -> _Connection:
        connection = self._connections.get(_peer(request) or "")
        if connection is None or connection.session != session:
            raise _unknown_session()
        return connection

    def _close(self) -> None:
        self._closing = True
        for connection in self._connections.values():
            connection.news.set()


def _read(server: str, request: Request, reply: Reply, reply_type: type[ReplyType]) -> ReplyType:
    if reply.refusal is not None:
        raise AgentRefused(server, reply.refusal)
    try:
        return reply_type.model_validate(reply.result)
    except ValidationError as error:
        raise AgentProblem(
            f"its answer to {request.request} is not understood: {error}",
            where=server,
            remedy="install the same release on the server and on the controller",
        ) from error


def _raise_first(failed: Mapping[str, BaseException], answered: Mapping[str, Any]) -> None:
    """Nothing, if nothing failed. What is no agent's problem (a defect of ours) goes first."""
    for error in failed.values():
        if not isinstance(error, AgentProblem):
            raise error
    lost = [server for server, error in failed.items() if isinstance(error, AgentUnreachable)]
    if lost:
        whys = dict.fromkeys(str(getattr(failed[server], "what", "")) for server in lost)
        raise AgentUnreachable(lost, why="; ".join(whys), answered=answered)
    for error in failed.values():
        assert isinstance(error, AgentProblem)
        error.answered = dict(answered)
        raise error


def _fresh_context(authority: Authority) -> ssl.SSLContext:
    """The key is on disk only until it is loaded."""
    with tempfile.TemporaryDirectory(prefix="placewire-") as scratch:
        issued = authority.issue(
            CONTROLLER_NAME, "controller", Path(scratch), lifetime_seconds=_CERTIFICATE_SECONDS
        )
        return server_context(authority.certificate_file, issued)


def _peer(request: web.Request) -> str | None:
    return peer_name(request.get_extra_info("peercert"))


async def _parsed(request: web.Request, kind: type[ReplyType]) -> ReplyType:
    from aiohttp import web

    try:
        return kind.model_validate_json(await request.read())
    except ValidationError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _response(message: BaseModel) -> web.Response:
    from aiohttp import web

    return web.Response(text=message.model_dump_json(), content_type="application/json")


def _empty() -> web.Response:
    from aiohttp import web

    return web.Response(status=204)


def _refused(what: str, where: str, remedy: str) -> web.HTTPException:
    from aiohttp import web

    refusal = Refusal(what=what, where=where, remedy=remedy)
    return web.HTTPForbidden(text=refusal.model_dump_json(), content_type="application/json")


def _unknown_session() -> web.HTTPException:
    """The agent says hello again."""
    from aiohttp import web

    return web.HTTPGone(text="no such session: say hello again")
