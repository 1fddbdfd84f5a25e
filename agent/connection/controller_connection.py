"""The link to the controller: dials out, mutual TLS, long poll; never dies of a lost controller."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import ValidationError
from yarl import URL

from placewire.agent.connection.identity import keep, new_key, require_room, seconds_to_half_life
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.enrolment import CertificateAnswer, CertificateRequest
from placewire.agent.contract.messages import POLL_SECONDS, Hello, Poll, Previewed, Reply, Welcome
from placewire.agent.contract.state import ApplyReport, Refusal
from placewire.agent.service import Service
from placewire.frozen import Frozen

log = logging.getLogger(__name__)

# The DNS name in the controller's certificate, whatever address it is dialled at.
CONTROLLER_NAME = "controller"
# Between attempts; jittered, so that a hundred agents do not come back in one moment.
RECONNECT_SECONDS = (0.1, 0.6)
# Whoever listens and does not welcome us in time has too much to do, and what it began for us was
# done for nothing: each such attempt doubles the pause, so often at most.
MOST_DOUBLINGS = 4
# After an answer that a retry will not change: a wrong version, an unknown server.
REFUSED_SECONDS = 2.0
ANSWER_SECONDS = 5.0
# Of a hello, which may need a connection and its handshake, beside those of all other agents.
HELLO_SECONDS = 10.0
LOOK_AT_CERTIFICATE_SECONDS = 3600.0
REMEMBERED_REPLIES = 256
# States of a large server with thousands of queues are a few megabytes.
LARGEST_ANSWER_BYTES = 64 * 2**20
# Of why a controller refuses, in bytes.
LONGEST_SAID = 2000


class ControllerRefusedError(Exception):
    """The controller answered, and refused."""


def tls_context(config: AgentConfig) -> ssl.SSLContext:
    """Raises OSError or ssl.SSLError naming what is wrong with the certificates."""
    context = ssl.create_default_context(cafile=config.authority_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(config.certificate_file, config.key_file)
    return context


class ControllerConnection:
    """hello: made anew for each connection, in a thread (it looks at the network). linked: set from
    a controller's welcome until its connection breaks."""

    def __init__(
        self,
        config: AgentConfig,
        service: Service,
        hello: Callable[[], Hello],
        context: ssl.SSLContext,
    ) -> None:
        self._config = config
        self._url = config.controller_url.rstrip("/")
        self._service = service
        self._hello = hello
        self._context = context
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._replies: OrderedDict[str, Frozen] = OrderedDict()
        self._session_id = ""
        self.linked = asyncio.Event()
        # Hellos in a row that were not answered in time.
        self._late = 0
        # Why there was no controller when that was last told.
        self._alone = ""
        self._looked_at_certificate = 0.0

    async def run(self) -> None:
        """Until cancelled. Requests under way go on while the controller is away."""
        connector = aiohttp.TCPConnector(ssl=self._context)
        async with aiohttp.ClientSession(connector=connector) as http:
            while True:
                pause = 0.0
                try:
                    await self._connect(http)
                except ControllerRefusedError as error:
                    log.warning("the controller refuses: %s", error)
                    pause += REFUSED_SECONDS
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self._say_alone(error)
                    pause += REFUSED_SECONDS if _is_tls(error) else 0.0
                except Exception:
                    # A fault that passes (Open vSwitch restarts) or a mistake of ours: neither
                    # may end the daemon, whose timer undoes what must not last.
                    log.exception("the link failed; trying again")
                    pause += REFUSED_SECONDS
                finally:
                    self.linked.clear()
                await asyncio.sleep(pause + self._pause())

    def _pause(self) -> float:
        return random.uniform(*RECONNECT_SECONDS) * 2.0 ** min(self._late, MOST_DOUBLINGS)

    async def _connect(self, http: aiohttp.ClientSession) -> None:
        """Polls until something goes wrong."""
        # No controller listens most of the time; looking at the whole network to greet nobody
        # took 7 % of a core. One that was late is there, and need not be asked for that as well.
        if not self._late:
            await self._require_listener()
        hello = await asyncio.to_thread(self._hello)
        try:
            document = await self._post(http, "/v1/hello", hello, HELLO_SECONDS)
        except TimeoutError:
            self._late += 1
            raise
        try:
            self._session_id = Welcome.model_validate(document).session
        except ValidationError as error:
            raise ControllerRefusedError(f"its welcome is not understood: {error}") from error
        log.info("linked to %s", self._url)
        self._alone, self._late = "", 0
        self.linked.set()
        await self._renew_if_due(http)
        poll = Poll(session=self._session_id)
        while True:
            if time.monotonic() - self._looked_at_certificate > LOOK_AT_CERTIFICATE_SECONDS:
                await self._renew_if_due(http)
            document = await self._post(http, "/v1/poll", poll, POLL_SECONDS + ANSWER_SECONDS)
            self._take_all(http, document)

    async def _renew_if_due(self, http: aiohttp.ClientSession) -> None:
        """From half of its life on, looked at now and then; connections that are made from then on
        have the new one. What goes wrong here is told, and tried again: the old one still holds."""
        self._looked_at_certificate = time.monotonic()
        file = Path(self._config.certificate_file)
        if self._config.key_file != self._config.certificate_file:
            return  # brought by hand: whoever brought it renews it
        try:
            if await asyncio.to_thread(seconds_to_half_life, file) > 0:
                return
            key = await asyncio.to_thread(new_key, self._config.server)
            await asyncio.to_thread(require_room, file, key.key_pem, like=file.parent)
            asked = CertificateRequest(request_pem=key.request_pem)
            document = await self._post(http, "/v1/certificate", asked, ANSWER_SECONDS)
            chain = CertificateAnswer.model_validate(document).chain_pem
            await asyncio.to_thread(keep, file, key.key_pem, chain, like=file.parent)
            self._context.load_cert_chain(file)
        except (OSError, ValueError, ControllerRefusedError) as error:
            log.warning("the certificate could not be renewed: %s", error)
        else:
            log.info("the certificate was renewed")

    def _take_all(self, http: aiohttp.ClientSession, document: Any) -> None:
        """Raises ControllerRefusedError where that is no list of requests."""
        for envelope in _envelopes(document):
            self._take(http, envelope["id"], envelope.get("body"))

    def _say_alone(self, error: Exception) -> None:
        """Once, not at every attempt: an agent is alone most of its life. One that is not believed
        is another matter than none."""
        why = f"{type(error).__name__}: {error}" if _is_tls(error) else "nobody answers"
        if why != self._alone:
            if _is_tls(error):
                log.warning("not spoken to: %s", error)
            else:
                log.info("no controller: %s", error)
        self._alone = why

    async def _require_listener(self) -> None:
        """Raises OSError or TimeoutError where nobody listens."""
        url = URL(self._url)
        # Not wait_for: until Python 3.12 it forgets that it was cancelled where what it waits for
        # ends in the same moment, and the agent would go on after SIGTERM.
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(url.host, url.port)
        writer.close()

    def _take(self, http: aiohttp.ClientSession, identifier: str, body: Any) -> None:
        """Starts a request once, however often it is delivered."""
        if identifier not in self._tasks:
            task = asyncio.create_task(self._handle(http, identifier, body))
            self._tasks[identifier] = task
            task.add_done_callback(lambda _: self._tasks.pop(identifier, None))

    async def _handle(self, http: aiohttp.ClientSession, identifier: str, body: Any) -> None:
        """Does what is asked, once, and tells it until a controller has taken it."""
        answer = self._replies.get(identifier)
        if answer is None:
            answer = await self._answer(body)
            for refusal in _refusals(answer):
                log.warning("refused: %s: %s; %s", refusal.where, refusal.what, refusal.remedy)
            self._replies[identifier] = answer
            if len(self._replies) > REMEMBERED_REPLIES:
                self._replies.popitem(last=False)
        while not await self._tell(http, identifier, answer):
            await self.linked.wait()
            if http.closed:
                return  # Who dials anew is asked again, and answers from what it did.
            await asyncio.sleep(random.uniform(*RECONNECT_SECONDS))

    async def _tell(self, http: aiohttp.ClientSession, identifier: str, answer: Frozen) -> bool:
        """Whether it need not be told again."""
        try:
            reply = self._reply(identifier, answer)
            await self._post(http, "/v1/replies", reply, ANSWER_SECONDS)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("reply %s: %s", identifier, error)
            return False
        except ControllerRefusedError as error:
            log.warning("reply %s is not wanted: %s", identifier, error)
        return True

    async def _answer(self, body: Any) -> Frozen:
        try:
            return await self._service.answer(body)
        except Exception as error:
            # A mistake of ours must reach the one who asked, and must not end the daemon.
            log.exception("request failed")
            return Refusal(
                what=f"the agent failed: {type(error).__name__}: {error}",
                where="agent",
                remedy="see the agent's log, and report it",
            )

    def _reply(self, identifier: str, answer: Frozen) -> Reply:
        if isinstance(answer, Refusal):
            return Reply(session=self._session_id, id=identifier, refusal=answer)
        result = answer.model_dump(mode="json")
        return Reply(session=self._session_id, id=identifier, result=result)

    async def _post(
        self, http: aiohttp.ClientSession, path: str, message: Frozen, seconds: float
    ) -> Any:
        async with http.post(
            self._url + path,
            json=message.model_dump(mode="json"),
            server_hostname=CONTROLLER_NAME,
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as response:
            data = await _whole(response.content)
            if response.status >= 400:
                said = data[:LONGEST_SAID].decode(errors="replace")
                raise ControllerRefusedError(f"{path}: {response.status} {said}")
            try:
                return json.loads(data) if data else None
            except (ValueError, RecursionError) as error:
                raise ControllerRefusedError(f"{path}: its answer is not JSON") from error


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """Raises ControllerRefusedError where there is no end to it."""
    data = bytearray()
    async for part in content.iter_any():
        data += part
        if len(data) > LARGEST_ANSWER_BYTES:
            raise ControllerRefusedError(f"its answer has more than {LARGEST_ANSWER_BYTES} bytes")
    return bytes(data)


def _is_tls(error: Exception) -> bool:
    """Somebody is there, and one of us does not believe the other."""
    causes = (error, error.__cause__, getattr(error, "os_error", None))
    return any(isinstance(one, ssl.SSLError | aiohttp.ClientSSLError) for one in causes)


def _refusals(answer: Frozen) -> tuple[Refusal, ...]:
    if isinstance(answer, Refusal):
        return (answer,)
    return answer.refusals if isinstance(answer, ApplyReport | Previewed) else ()


def _envelopes(document: Any) -> list[dict[str, Any]]:
    """Each body is judged by itself, so that one unknown request does not hide the others."""
    envelopes = document.get("envelopes") if isinstance(document, dict) else None
    if not isinstance(envelopes, list) or not all(
        isinstance(e, dict) and _is_identifier(e.get("id")) for e in envelopes
    ):
        raise ControllerRefusedError("its list of requests is not understood")
    return envelopes


def _is_identifier(value: Any) -> bool:
    """What can be sent back as it came."""
    return isinstance(value, str) and value.isascii()
