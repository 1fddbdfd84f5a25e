"""The web side of the agent link: hello, poll and reply, over mutual TLS.

Agents dial in and poll; a request waits here until its agent's next poll. After a broken connection
the same agent is given its unanswered requests again, by the same ids, and knows those that it has.
An agent that restarted meanwhile is reported as unreachable, not asked again: half of the work may
have been done.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from agent.contract.enrolment import CertificateAnswer, CertificateRequest
from agent.contract.messages import (
    POLL_SECONDS,
    PROTOCOL_VERSION,
    Envelope,
    Envelopes,
    Hello,
    Poll,
    Reply,
    Welcome,
)
from agent.contract.state import Refusal
from controller.ca import AGENT_LIFETIME_SECONDS, Authority, bearer_of
from controller.errors import AgentUnreachable, UsageError

Message = TypeVar("Message", bound=BaseModel)

# Observations of a large server with thousands of queues are a few megabytes.
_LARGEST_MESSAGE_BYTES = 64 * 2**20


@dataclass
class Asked:
    envelope: Envelope
    answer: asyncio.Future[Reply]


@dataclass
class Conversation:
    """With one server's agent, over all its connections.

    session: of its latest hello; an older one is told to say hello again.
    heard: when a poll or reply last came or a poll last ended, on the monotonic clock.
    waiting: not handed over yet; pending: all without an answer, by id.
    """

    hello: Hello
    session: str = ""
    heard: float = 0.0
    open_polls: int = 0
    waiting: list[Asked] = field(default_factory=list)
    pending: dict[str, Asked] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def silent_seconds(self) -> float:
        return 0.0 if self.open_polls else time.monotonic() - self.heard

    def begin(self, asked: Asked) -> None:
        self.pending[asked.envelope.id] = asked
        self.waiting.append(asked)
        self.news.set()

    def forget(self, asked: Asked) -> None:
        self.pending.pop(asked.envelope.id, None)
        if asked in self.waiting:
            self.waiting.remove(asked)

    def greet(self, hello: Hello) -> None:
        """A hello: a response with requests in it may have been lost with the former connection."""
        if hello.agent_pid == self.hello.agent_pid:
            self.waiting = list(self.pending.values())
        else:
            for asked in self.pending.values():
                if asked not in self.waiting and not asked.answer.done():
                    asked.answer.set_exception(
                        AgentUnreachable([hello.server], why="it restarted meanwhile")
                    )
        self.hello, self.session, self.heard = hello, uuid.uuid4().hex, time.monotonic()
        self.news.set()  # polls of the former session end


class Link:
    """conversations by server; arrival is set whenever an agent says hello."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self.conversations: dict[str, Conversation] = {}
        self.arrival = asyncio.Event()
        self._closing = False

    def application(self) -> web.Application:
        application = web.Application(client_max_size=_LARGEST_MESSAGE_BYTES)
        application.router.add_post("/v1/hello", self._on_hello)
        application.router.add_post("/v1/poll", self._on_poll)
        application.router.add_post("/v1/replies", self._on_reply)
        application.router.add_post("/v1/certificate", self._on_renewal)
        return application

    def close(self) -> None:
        """Ends open polls, so that closing waits for none."""
        self._closing = True
        for conversation in self.conversations.values():
            conversation.news.set()

    async def _on_hello(self, request: web.Request) -> web.Response:
        hello = await _parsed(request, Hello)
        name = self._admitted(request)
        if hello.server != name:
            raise _refused(
                f"claims to be {hello.server!r}",
                f"certificate of {name!r}",
                "give the agent the name that its certificate was issued for",
            )
        if hello.version != PROTOCOL_VERSION:
            raise _refused(
                f"speaks version {hello.version} of the protocol",
                hello.server,
                f"the controller speaks version {PROTOCOL_VERSION}: install the same release",
            )
        conversation = self.conversations.setdefault(name, Conversation(hello))
        conversation.greet(hello)
        self.arrival.set()
        return _response(Welcome(session=conversation.session))

    async def _on_poll(self, request: web.Request) -> web.Response:
        poll = await _parsed(request, Poll)
        conversation = self.conversations.get(self._admitted(request))
        if conversation is None or conversation.session != poll.session:
            raise _unknown_session()
        conversation.open_polls += 1
        try:
            await self._news(conversation)
            if conversation.session != poll.session:
                raise _unknown_session()
            asked, conversation.waiting = conversation.waiting, []
            return _response(Envelopes(envelopes=tuple(a.envelope for a in asked)))
        finally:
            conversation.open_polls -= 1
            conversation.heard = time.monotonic()

    async def _news(self, conversation: Conversation) -> None:
        """Until there is something to hand over, at most as long as a poll may last."""
        if self._closing or conversation.waiting:
            return
        conversation.news.clear()
        try:
            await asyncio.wait_for(conversation.news.wait(), POLL_SECONDS)
        except TimeoutError:
            return

    async def _on_reply(self, request: web.Request) -> web.Response:
        """A reply to something that nobody waits for any more is taken and dropped."""
        reply = await _parsed(request, Reply)
        conversation = self.conversations.get(self._admitted(request))
        if conversation is not None:
            conversation.heard = time.monotonic()
            asked = conversation.pending.get(reply.id)
            if asked is not None and not asked.answer.done():
                asked.answer.set_result(reply)
        return web.Response(status=204)

    async def _on_renewal(self, request: web.Request) -> web.Response:
        """A new certificate for the name of the one that asks."""
        asked = await _parsed(request, CertificateRequest)
        server = self._admitted(request)
        try:
            chain = self._authority.sign(
                asked.request_pem,
                server,
                lifetime_seconds=AGENT_LIFETIME_SECONDS,
                renews=bearer_of(request.get_extra_info("peercert")),
            )
        except UsageError as error:
            raise _refused(error.what, error.where, "install the same release") from error
        return _response(CertificateAnswer(chain_pem=chain.decode()))

    def _admitted(self, request: web.Request) -> str:
        """The name in the certificate. Raises where it was denied since it was issued."""
        bearer = bearer_of(request.get_extra_info("peercert"))
        if self._authority.revocations.is_denied(bearer):
            raise _refused(
                "its certificate is denied",
                bearer.name,
                "`controller enrol` gives the server a new one, if it is to come back",
            )
        return bearer.name


async def _parsed(request: web.Request, kind: type[Message]) -> Message:
    try:
        return kind.model_validate_json(await request.read())
    except ValidationError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _response(message: BaseModel) -> web.Response:
    return web.Response(text=message.model_dump_json(), content_type="application/json")


def _refused(what: str, where: str, remedy: str) -> web.HTTPException:
    refusal = Refusal(what=what, where=where, remedy=remedy)
    return web.HTTPForbidden(text=refusal.model_dump_json(), content_type="application/json")


def _unknown_session() -> web.HTTPException:
    """The agent says hello again."""
    return web.HTTPGone(text="no such session: say hello again")
