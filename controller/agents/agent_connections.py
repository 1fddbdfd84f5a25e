"""Serves the controller's end of the agent link: hello, poll, reply and renewal, over mutual TLS.

Agents dial in and poll; a request waits here until its agent's next poll. After a broken connection
an agent is sent its unanswered requests again with the same ids, by which it recognises those that
it received before. An agent that restarted meanwhile is not asked again but reported as
unreachable, because half of the work may have been done.

A second agent that says hello under the name of one that still polls is turned away as its rival:
which of two servers with one certificate is obeyed must not be left to chance.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from placewire.agent.contract.enrolment import CertificateAnswer, CertificateRequest
from placewire.agent.contract.messages import (
    POLL_SECONDS,
    PROTOCOL_VERSION,
    Envelopes,
    Hello,
    Poll,
    Reply,
    Welcome,
)
from placewire.agent.contract.state import Refusal
from placewire.controller.agent_advice import see_what_makes_it_so
from placewire.controller.agents.authority import AGENT_LIFETIME_SECONDS, Authority, bearer_of
from placewire.controller.agents.conversation import Asked, Conversation
from placewire.controller.agents.listening_clock import ListeningClock
from placewire.controller.agents.refused_connections import RefusedConnections
from placewire.controller.agents.revocations import Bearer
from placewire.controller.errors import UsageError
from placewire.frozen import first_mistake

Message = TypeVar("Message", bound=BaseModel)

# Observations of a large server with thousands of queues are a few megabytes; all else is small.
_LARGEST_REPLY_BYTES = 16 * 2**20
_LARGEST_MESSAGE_BYTES = 2**20
# A value takes up to a hundred times the memory that its text takes. A hello has some thirty of
# each NIC, and every certificate may say it, also that of a server that is in no plan.
_MOST_REPLY_VALUES = 500_000
_MOST_VALUES = 50_000
# After this time an agent has given up sending its message.
READ_SECONDS = 10.0
# So long after a renewal no other one is made for the name: each takes a line of a file, and time
# in which no agent is heard. An agent asks once in 15 days; where it could not keep what it got, it
# asks again an hour later, or when it dials anew.
_RENEWAL_PAUSE_SECONDS = 600.0
# A message with more mistakes than this takes up to a second and 300 MiB to be judged, in which no
# agent is heard: no other message of its certificate's name is judged for so long. An agent makes
# no mistakes, and one of another release is refused by its version.
_MANY_MISTAKES = 1000
_MISTAKES_PAUSE_SECONDS = 20.0
_APART = "give each server its own: `controller authority deny`, then `controller enrol` for both"


class _Spoken(BaseModel):
    """What every version of a hello has, whatever else is in it."""

    model_config = ConfigDict(extra="ignore")
    version: Any = None


class AgentConnections:
    """conversations: by server. arrival: set whenever an agent says hello. clock: the caller must
    run it while this serves. refused_connections: notes every refusal."""

    def __init__(self, authority: Authority, refused_connections: RefusedConnections) -> None:
        self._authority, self._refused_connections = authority, refused_connections
        self.conversations: dict[str, Conversation] = {}
        self.arrival, self.clock = asyncio.Event(), ListeningClock()
        self._closing = False
        self._renewed: dict[str, float] = {}
        self._mistaken: dict[str, float] = {}

    def application(self) -> web.Application:
        application = web.Application(client_max_size=_LARGEST_REPLY_BYTES)
        application.router.add_post("/v1/hello", self._on_hello)
        application.router.add_post("/v1/poll", self._on_poll)
        application.router.add_post("/v1/replies", self._on_reply)
        application.router.add_post("/v1/certificate", self._on_renewal)
        return application

    def close(self) -> None:
        """Ends open polls, so that closing the server does not wait for them."""
        self._closing = True
        for conversation in self.conversations.values():
            conversation.news.set()

    async def _on_hello(self, request: web.Request) -> web.Response:
        bearer, body = await self._body(request)
        # Before all else: only this version's hello has the keys that are checked then.
        if (said := _version_in(body)) != PROTOCOL_VERSION:
            what = f"speaks version {said} of the protocol"
            remedy = f"the controller speaks version {PROTOCOL_VERSION}: install the same release"
            raise self._refused(request, what, bearer.name, remedy)
        hello = self._understood(request, body, Hello)
        name, serial, address = bearer.name, bearer.serial, request.remote or ""
        where = f"certificate of {name!r}"
        if hello.server != name:
            remedy = "give the agent the name that its certificate was issued for"
            raise self._refused(request, f"claims to be {hello.server!r}", where, remedy)
        former = self.conversations.get(name)
        if former is not None and not former.is_of(hello) and await former.still_polls():
            former.rivals = (former.address, address)
            with contextlib.suppress(OSError):  # This command knows of the rivals all the same.
                self._authority.revocations.note_copied({former.serial, serial}, *former.rivals)
            what = f"is a second {name!r}: the first, at {former.address}, is linked"
            raise self._refused(request, what, where, _APART)
        conversation = self.conversations.setdefault(name, Conversation(hello, self.clock))
        conversation.greet(hello, address, serial)
        conversation.rivals = conversation.rivals or self._authority.revocations.copied(serial)
        self.arrival.set()
        return _response(Welcome(session=conversation.session))

    async def _on_poll(self, request: web.Request) -> web.Response:
        bearer, poll = await self._received(request, Poll)
        conversation = self.conversations.get(bearer.name)
        if conversation is None or conversation.session != poll.session:
            raise _unknown_session()
        conversation.open_polls += 1
        conversation.polls += 1
        try:
            await self._wait_for_news(conversation)
            if conversation.session != poll.session:
                raise _unknown_session()
            asked, conversation.waiting = conversation.waiting, []
            return _response(Envelopes(envelopes=tuple(a.envelope for a in asked)))
        finally:
            conversation.open_polls -= 1
            conversation.heard = self.clock.seconds()

    async def _wait_for_news(self, conversation: Conversation) -> None:
        """Waits until a request can be handed over, at most as long as a poll may last."""
        if self._closing or conversation.waiting:
            return
        conversation.news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await conversation.news.wait()

    async def _on_reply(self, request: web.Request) -> web.Response:
        """A reply that nobody waits for, or not any more, is accepted and dropped: it is neither
        kept nor understood, which may take a second and half a gigabyte. So each request has one
        reply read, and a server of which nothing is asked none."""
        bearer = self._bearer_of_at_most(request, _LARGEST_REPLY_BYTES, self._answer_refused)
        conversation = self.conversations.get(bearer.name)
        if conversation is None or not conversation.unanswered():
            await self._content(request, keep=False)
            return web.Response(status=204)
        body = await self._content(request)
        conversation.heard = self.clock.seconds()
        if asked := conversation.mentioned_in(body):
            self._take_reply(request, bearer, conversation, asked, body)
        return web.Response(status=204)

    def _take_reply(
        self,
        request: web.Request,
        bearer: Bearer,
        conversation: Conversation,
        asked: list[Asked],
        body: bytes,
    ) -> None:
        """asked: the requests whose ids are in the body. None of them waits any longer then, and so
        no second reply to them is read. Raises an HTTP refusal."""
        try:
            self._require_few_values(request, body, _MOST_REPLY_VALUES)
            reply = self._understood(request, body, Reply)
        except web.HTTPException as refusal:
            self._fail(conversation, asked, refusal.text or "")
            raise
        for one in asked:
            if one.envelope.id == reply.id and not one.answer.done():
                one.answer.set_result(reply)
        self._fail(conversation, asked, "it is the answer to another request")

    async def _on_renewal(self, request: web.Request) -> web.Response:
        """Signs a new certificate for the same name as the one that the agent shows."""
        bearer, asked = await self._received(request, CertificateRequest)
        if self._authority.revocations.copied(bearer.serial) is not None:
            raise self._refused(request, "two servers hold its certificate", bearer.name, _APART)
        renewed, now = self._renewed.get(bearer.name), time.monotonic()
        if renewed is not None and now - renewed < _RENEWAL_PAUSE_SECONDS:
            what = f"renewed its certificate within the last {_RENEWAL_PAUSE_SECONDS:g} s"
            raise self._refused(request, what, bearer.name, "keep that one, or ask again later")
        pem, lifetime = asked.request_pem, AGENT_LIFETIME_SECONDS
        try:
            chain = self._authority.sign(pem, bearer.name, lifetime_seconds=lifetime, renews=bearer)
        except UsageError as error:
            remedy = "install the same release on the server and on the controller"
            raise self._refused(request, error.what, error.where, remedy) from error
        self._renewed[bearer.name] = now
        return _response(CertificateAnswer(chain_pem=chain.decode()))

    def _admitted(self, request: web.Request) -> Bearer:
        """The certificate that the request came with; checked before the message is read. Raises
        an HTTP refusal where the certificate was denied or has expired since the connection was
        made, or where the connection is gone."""
        if request.transport is None or request.transport.is_closing():
            raise _closing(web.HTTPBadRequest())
        bearer = bearer_of(request.get_extra_info("peercert"))
        remedy = "if the server is to come back, `controller enrol` gives it a new certificate"
        if self._authority.revocations.is_denied(bearer):
            raise self._refused(request, "its certificate is denied", bearer.name, remedy)
        if bearer.expires_unix <= time.time():
            raise self._refused(request, "its certificate has expired", bearer.name, remedy)
        return bearer

    def _answer_refused(self, bearer: Bearer, why: str) -> None:
        """Which request the answer was for is not known, and no other answer of this agent may be
        waited for in vain: all that it was asked fails."""
        if (conversation := self.conversations.get(bearer.name)) is not None:
            self._fail(conversation, conversation.handed_over(), why)

    def _fail(self, conversation: Conversation, asked: list[Asked], why: str) -> None:
        remedy = see_what_makes_it_so(conversation.hello.server)
        conversation.fail(asked, f"its answer was refused: {why}", remedy)

    async def _received(self, request: web.Request, kind: type[Message]) -> tuple[Bearer, Message]:
        """(the certificate, the message). Raises what `_body` and `_understood` raise."""
        bearer, body = await self._body(request)
        return bearer, self._understood(request, body, kind)

    async def _body(self, request: web.Request) -> tuple[Bearer, bytes]:
        """(the certificate, the message as it came). Raises an HTTP refusal where the methods below
        do."""
        bearer = self._bearer_of_at_most(request, _LARGEST_MESSAGE_BYTES)
        body = await self._content(request)
        mistaken = self._mistaken.get(bearer.name)
        if mistaken is not None and time.monotonic() - mistaken < _MISTAKES_PAUSE_SECONDS:
            what = f"its last message had more than {_MANY_MISTAKES} mistakes"
            remedy = f"ask again in {_MISTAKES_PAUSE_SECONDS:g} s, by the same release"
            raise self._refused(request, what, bearer.name, remedy)
        self._require_few_values(request, body, _MOST_VALUES)
        return bearer, body

    def _bearer_of_at_most(
        self,
        request: web.Request,
        most_bytes: int,
        on_excess: Callable[[Bearer, str], None] = lambda bearer, why: None,
    ) -> Bearer:
        """The certificate. Raises an HTTP refusal where `_admitted` does, or where the message is
        larger than this process may read; on_excess: told of that first."""
        bearer, length = self._admitted(request), request.content_length
        if length is None or length > most_bytes:
            said = "a message of unknown length" if length is None else f"{length} bytes"
            why = f"{said}; at most {most_bytes} bytes are accepted"
            on_excess(bearer, why)
            raise self._too_large(request, why)
        return bearer

    async def _content(self, request: web.Request, *, keep: bool = True) -> bytes:
        """The message as it came; empty where it is not to be kept. Raises an HTTP refusal where it
        comes too slowly."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                if keep:
                    return await request.read()
                async for _ in request.content.iter_any():
                    pass
                return b""
        except TimeoutError as error:
            why = f"{request.path}: its message was not complete within {READ_SECONDS:g} s"
            self._note(request, why)
            raise _closing(web.HTTPRequestTimeout()) from error

    def _require_few_values(self, request: web.Request, body: bytes, most: int) -> None:
        """Raises an HTTP refusal."""
        if (values := _most_values_in(body)) > most:
            why = f"up to {values} JSON values; at most {most} are accepted"
            raise self._too_large(request, why)

    def _too_large(self, request: web.Request, why: str) -> web.HTTPException:
        self._note(request, f"{request.path}: {why}")
        length = request.content_length or 0
        return _closing(web.HTTPRequestEntityTooLarge(_LARGEST_REPLY_BYTES, length, text=why))

    def _understood(self, request: web.Request, body: bytes, kind: type[Message]) -> Message:
        """Raises an HTTP refusal."""
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            what = f"its message is not understood: {first_mistake(error)}"
            self._note(request, f"{request.path}: {what}")
            if error.error_count() > _MANY_MISTAKES:
                name = bearer_of(request.get_extra_info("peercert")).name
                self._mistaken[name] = time.monotonic()
            raise web.HTTPBadRequest(text=what) from error

    def _refused(
        self, request: web.Request, what: str, where: str, remedy: str
    ) -> web.HTTPException:
        self._note(request, f"{where}: {what}")
        refusal = Refusal(what=what, where=where, remedy=remedy)
        text = refusal.model_dump_json()
        return _closing(web.HTTPForbidden(text=text, content_type="application/json"))

    def _note(self, request: web.Request, why: str) -> None:
        self._refused_connections.note(request.remote or "", why)


def _version_in(body: bytes) -> object:
    """The version that a hello of any version names; None: it names none."""
    try:
        said = _Spoken.model_validate_json(body).version
    except ValidationError:
        return None
    return said if said is None or isinstance(said, int) else repr(said)[:40]


def _most_values_in(document: bytes) -> int:
    """No fewer than a JSON document has, counted without reading it: a value follows a comma or a
    bracket, or is the first."""
    return 1 + sum(document.count(mark) for mark in (b",", b"[", b"{"))


def _response(message: BaseModel) -> web.Response:
    return web.Response(text=message.model_dump_json(), content_type="application/json")


def _closing(refusal: web.HTTPException) -> web.HTTPException:
    """Has the agent dial again after this refusal: by then it may have a renewed certificate."""
    refusal.force_close()
    return refusal


def _unknown_session() -> web.HTTPException:
    return web.HTTPGone(text="no such session: say hello again")
