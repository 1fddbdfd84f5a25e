"""The controller's view of a cluster's agents: which are connected, and how to ask them."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from placewire.agent.contract.messages import Destroy, Hello, Preview, Reply, Request, Stage
from placewire.controller.agents.agent_connections import AgentConnections
from placewire.controller.agents.authority import Authority, bearer_of
from placewire.controller.agents.conversation import Asked, Conversation
from placewire.controller.agents.refused_connections import RefusedConnections
from placewire.controller.agents.tls_listener import TlsListener, listener_at
from placewire.controller.agents.unproven import Limits
from placewire.controller.errors import (
    AgentProblem,
    AgentRefused,
    AgentUnreachable,
    CannotListen,
)
from placewire.frozen import first_mistake

ReplyType = TypeVar("ReplyType", bound=BaseModel)

# An agent without an open poll for this long counts as gone.
SILENCE_SECONDS = 5.0
_SHORTEST_LOOK_SECONDS = 0.05
# All agents dial within this time after the controller begins to listen: each waits at most 0.6 s.
_ALL_DIAL_SECONDS = 1.0
# All agents of the largest plan may dial at once, and many of them from one machine in a lab.
_LIMITS = Limits(unproven=2048, unproven_each=1024)
_TO_CHANGE = (Preview, Stage, Destroy)
# How many refused connections an error names.
_MOST_TOLD = 4
# A command's process makes its own certificate, and a new one in time, however long its job lasts.
_CERTIFICATE_SECONDS = 30 * 86_400.0
_RENEWED_WITH_LEFT_SECONDS = _CERTIFICATE_SECONDS / 2
# A certificate begins some minutes before it is made: a clock may be set back by less than them.
_SET_BACK_SECONDS = 60.0
# Often, because the machine may have been suspended, or its clock set.
_LOOK_AT_CERTIFICATE_SECONDS = 60.0


class Agents:
    def __init__(self, link: AgentConnections, refused_connections: RefusedConnections) -> None:
        self._link, self._refused_connections = link, refused_connections

    @classmethod
    @asynccontextmanager
    async def listening(
        cls,
        host: str,
        tcp_port: int,
        authority: Authority,
        refused_connections: RefusedConnections | None = None,
    ) -> AsyncIterator[Agents]:
        """Serves the agent link while the block runs. refused_connections: notes every
        refusal. Raises CannotListen where this process cannot listen there."""
        refused_connections = refused_connections or RefusedConnections()
        context = authority.own_context(lifetime_seconds=_CERTIFICATE_SECONDS)
        try:
            listener = listener_at(host, tcp_port)
        except OSError as error:
            raise CannotListen(
                f"cannot listen for agents: {error.strerror}",
                where=f"{host}:{tcp_port}",
                remedy="another controller may be running there: wait for it to end. At another "
                "--listen no agent dials in, because agents know the port that they were "
                "provisioned with: `controller provision PLAN --listen HOST:PORT` tells a plan's "
                "agents another one, which all its commands need from then on",
            ) from error
        link = AgentConnections(authority, refused_connections)
        tls = TlsListener(context, _certified_name, refused_connections.note, _LIMITS)
        async with tls.serving(
            link.application(),
            listener,
            before_end=link.close,
            handler_cancellation=True,
            shutdown_timeout=0.05,
        ):
            counting = asyncio.create_task(link.clock.run())
            renewing = asyncio.create_task(_renew(authority, context))
            try:
                yield cls(link, refused_connections)
            finally:
                counting.cancel()
                renewing.cancel()
                refused_connections.tell_dropped()

    @property
    def hello(self) -> Mapping[str, Hello]:
        """By server, what each agent said of itself when it last connected."""
        return {server: c.hello for server, c in self._link.conversations.items()}

    @property
    def rivals(self) -> Mapping[str, tuple[str, str]]:
        """By server, the addresses of two agents that both say that they are this server, now or
        earlier with a certificate that is still in use."""
        found = self._link.conversations.items()
        return {server: c.rivals for server, c in found if c.rivals is not None}

    def present(self, server: str) -> bool:
        conversation = self._link.conversations.get(server)
        return conversation is not None and conversation.silent_seconds() < SILENCE_SECONDS

    async def missing(self, servers: Sequence[str], timeout_seconds: float) -> list[str]:
        """Waits until all these servers' agents are connected, or the time is over. Returns the
        servers whose agents are not connected."""
        deadline = time.monotonic() + timeout_seconds
        while missing := [server for server in servers if not self.present(server)]:
            if (remaining := deadline - time.monotonic()) <= 0:
                break
            self._link.arrival.clear()
            with suppress(TimeoutError):
                # Before Python 3.12, asyncio.wait_for can lose a cancellation.
                async with asyncio.timeout(remaining):
                    await self._link.arrival.wait()
        return missing

    async def wait_for(self, servers: Sequence[str], timeout_seconds: float) -> None:
        """Waits as `missing` does. Raises AgentUnreachable, naming the servers that are missing."""
        if missing := await self.missing(servers, timeout_seconds):
            why = f"not dialled in within {timeout_seconds:g} s"
            if told := self._refused_connections.told:
                why += f"; these were turned away: {'; '.join([*told][-_MOST_TOLD:])}"
            raise AgentUnreachable(missing, why=why)

    async def ask(
        self, server: str, request: Request, reply_type: type[ReplyType], timeout_seconds: float
    ) -> ReplyType:
        """The agent's answer. Raises AgentRefused with the agent's reason; AgentUnreachable where
        it is not connected, falls silent, restarts meanwhile, or does not answer in time; and
        AgentProblem where its answer is not understood."""
        conversation = self._link.conversations.get(server)
        if conversation is None:
            raise AgentUnreachable([server], why="it has not dialled in")
        asked = conversation.begin(request)
        try:
            reply = await _answer(conversation, asked, timeout_seconds)
        finally:
            conversation.forget(asked)
        return _read(server, request, reply, reply_type)

    async def ask_all(
        self, requests: Mapping[str, Request], reply_type: type[ReplyType], timeout_seconds: float
    ) -> dict[str, ReplyType]:
        """Asks all servers at once; returns the answers by server.

        Waits for every outcome, then raises one exception that carries the answers of those that
        did answer: AgentUnreachable if any is unreachable, else the first failure. Raises
        AgentProblem, and asks nobody, where a change is requested of a server that has two agents.
        """
        if any(isinstance(request, _TO_CHANGE) for request in requests.values()):
            await self._require_one_each(requests)
        asking = [
            self.ask(server, request, reply_type, timeout_seconds)
            for server, request in requests.items()
        ]
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        by_server = dict(zip(requests, outcomes, strict=True))
        answered = {s: o for s, o in by_server.items() if not isinstance(o, BaseException)}
        failed = {s: o for s, o in by_server.items() if isinstance(o, BaseException)}
        if failed:
            raise _gathered(failed, answered)
        return answered

    async def _require_one_each(self, servers: Iterable[str]) -> None:
        """Raises AgentProblem where two agents say that they are the same server. Waits first,
        because the second may dial a moment after the first, and be heard later still where this
        process is held up."""
        while (remaining := _ALL_DIAL_SECONDS - self._link.clock.seconds()) > 0:
            await asyncio.sleep(remaining)
        for server in servers:
            if (both := self.rivals.get(server)) is not None:
                raise AgentProblem(
                    f"two agents say that they are this server: from {both[0]}, and from {both[1]}",
                    where=server,
                    remedy="one has a copy of the other's certificate; give each one its own: "
                    f"`controller authority deny {server}`, then `controller enrol` for both",
                )


async def _renew(authority: Authority, context: ssl.SSLContext) -> None:
    """Gives the context, which has a new certificate now, another one whenever half is over, or the
    clock was set back. By the wall clock, as its peers do."""
    made_unix = _now_unix()
    while True:
        await asyncio.sleep(_LOOK_AT_CERTIFICATE_SECONDS)
        if _is_due(made_unix, _now_unix()):
            with suppress(OSError):  # It is tried again, for half of its life.
                authority.renew_own(context, lifetime_seconds=_CERTIFICATE_SECONDS)
                made_unix = _now_unix()


def _now_unix() -> float:
    return time.time()


def _is_due(made_unix: float, now_unix: float) -> bool:
    """Whether a certificate that was made then is to be made anew: also where it would begin in the
    future, by a clock that was ahead when it was made and has been set right since."""
    left_seconds = made_unix + _CERTIFICATE_SECONDS - now_unix
    return left_seconds < _RENEWED_WITH_LEFT_SECONDS or now_unix < made_unix - _SET_BACK_SECONDS


def _certified_name(transport: asyncio.BaseTransport) -> str:
    """Of a peer that passed a handshake in which it must show a certificate of the authority."""
    return bearer_of(transport.get_extra_info("peercert")).name or "a certificate without a name"


async def _answer(conversation: Conversation, asked: Asked, timeout_seconds: float) -> Reply:
    server, deadline = conversation.hello.server, time.monotonic() + timeout_seconds
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            what = asked.envelope.body.request
            raise AgentUnreachable([server], why=f"{what}: no answer in {timeout_seconds:g} s")
        if (silence := conversation.silent_seconds()) >= SILENCE_SECONDS:
            raise AgentUnreachable([server], why=f"silent for {silence:.0f} s")
        # The agent cannot have been silent for SILENCE_SECONDS before this pause is over.
        pause = max(SILENCE_SECONDS - silence, _SHORTEST_LOOK_SECONDS)
        done, _ = await asyncio.wait([asked.answer], timeout=min(pause, remaining))
        if done:
            return asked.answer.result()


def _read(server: str, request: Request, reply: Reply, reply_type: type[ReplyType]) -> ReplyType:
    if reply.refusal is not None:
        raise AgentRefused(server, reply.refusal)
    try:
        return reply_type.model_validate(reply.result)
    except ValidationError as error:
        raise AgentProblem(
            f"its answer to {request.request} is not understood: {first_mistake(error)}",
            where=server,
            remedy="install the same release on the server and on the controller",
        ) from error


def require_asked_for(server: str, told: Iterable[Any], asked: Iterable[Any], of: str) -> None:
    """Raises AgentProblem where this server's answer tells something that it was not asked for, or
    something twice: a server may speak for itself alone. of: what it tells, in words."""
    left = Counter(asked)
    for one in told:
        if not left[one]:
            raise AgentProblem(
                f"its answer tells {of} {' '.join(map(str, one))}, for which it was not asked",
                where=server,
                remedy="nothing of this answer is believed. Install the same release on the server "
                "and on the controller; where that is so, another program has its certificate: "
                f"`controller authority deny {server}`, then `controller enrol {server}`",
            )
        left[one] -= 1


def _gathered(failed: Mapping[str, BaseException], answered: Mapping[str, Any]) -> BaseException:
    """The exception for all failures. One that is no AgentProblem is a defect, and goes first."""
    for error in failed.values():
        if not isinstance(error, AgentProblem):
            return error
    lost = {s: error for s, error in failed.items() if isinstance(error, AgentUnreachable)}
    if lost:
        whys = dict.fromkeys(error.why for error in lost.values())
        return AgentUnreachable(list(lost), why="; ".join(whys), answered=answered)
    first = next(iter(failed.values()))
    assert isinstance(first, AgentProblem)
    first.answered = dict(answered)
    return first
