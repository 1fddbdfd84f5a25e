"""The exchange with one server's agent: what it was asked, and what it has answered."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from placewire.agent.contract.messages import Envelope, Hello, Reply, Request
from placewire.controller.agents.listening_clock import ListeningClock
from placewire.controller.errors import AgentProblem, AgentUnreachable

# An agent whose poll is answered polls again at once, so well within this time.
_PROOF_SECONDS = 1.0


@dataclass
class Asked:
    envelope: Envelope
    answer: asyncio.Future[Reply]


@dataclass
class Conversation:
    """The exchange with one server's agent, over all its connections.

    hello, address, serial, session: of the latest hello, the message, the address that it came
    from, its certificate's number, and the session that it began; a message of an older session is
    told to say hello again. rivals: the addresses of two agents of this name. heard: when a reply
    last came or a poll last ended, by the clock. waiting: requests that were not handed over yet.
    pending: all requests without an answer, by id.
    """

    hello: Hello
    clock: ListeningClock
    address: str = ""
    serial: str = ""
    session: str = ""
    rivals: tuple[str, str] | None = None
    heard: float = 0.0
    open_polls: int = 0
    polls: int = 0
    waiting: list[Asked] = field(default_factory=list)
    pending: dict[str, Asked] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def silent_seconds(self) -> float:
        return 0.0 if self.open_polls else self.clock.seconds() - self.heard

    def begin(self, request: Request) -> Asked:
        future = asyncio.get_running_loop().create_future()
        asked = Asked(Envelope(id=uuid.uuid4().hex, body=request), future)
        self.pending[asked.envelope.id] = asked
        self.waiting.append(asked)
        self.news.set()
        return asked

    def unanswered(self) -> list[Asked]:
        return [asked for asked in self.pending.values() if not asked.answer.done()]

    def mentioned_in(self, document: bytes) -> list[Asked]:
        """The requests without an answer that this text can be the answer to: it has their id."""
        return [one for one in self.unanswered() if one.envelope.id.encode() in document]

    def handed_over(self) -> list[Asked]:
        return [asked for asked in self.unanswered() if asked not in self.waiting]

    def fail(self, some: Iterable[Asked], why: str, remedy: str) -> None:
        """Ends those of these requests that have no answer yet."""
        for asked in some:
            if not asked.answer.done():
                problem = AgentProblem(why, where=self.hello.server, remedy=remedy)
                asked.answer.set_exception(problem)

    def forget(self, asked: Asked) -> None:
        self.pending.pop(asked.envelope.id, None)
        if asked in self.waiting:
            self.waiting.remove(asked)

    def is_of(self, hello: Hello) -> bool:
        """Whether this hello comes from the same run of the same agent. The process number alone
        does not tell: it may return after a reboot, or on a copy of the server."""
        mine = self.hello
        return (mine.instance, mine.agent_pid) == (hello.instance, hello.agent_pid)

    async def still_polls(self) -> bool:
        """Whether the agent that was greeted last is still there. Ends its open poll and waits for
        the next one: an open poll is no proof, because a server that lost power leaves one open."""
        if self.silent_seconds() > _PROOF_SECONDS:
            return False
        before, deadline = self.polls, self.clock.seconds() + _PROOF_SECONDS
        self.news.set()
        while self.polls == before and self.clock.seconds() < deadline:
            await asyncio.sleep(0.01)
        return self.polls != before

    def greet(self, hello: Hello, address: str, serial: str) -> None:
        """Begins a new session with the agent that said hello."""
        if self.is_of(hello):
            # The response that handed them over may have been lost with the former connection.
            self.waiting = list(self.pending.values())
        else:
            for asked in self.pending.values():
                if asked not in self.waiting and not asked.answer.done():
                    problem = AgentUnreachable([hello.server], why="it restarted meanwhile")
                    asked.answer.set_exception(problem)
        self.hello, self.address, self.serial = hello, address, serial
        self.session, self.heard = uuid.uuid4().hex, self.clock.seconds()
        self.news.set()  # Polls of the former session end.
