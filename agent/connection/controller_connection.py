"""The link to the controller: dials out (mutual TLS, long poll), and dials again after a loss."""

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
from placewire.agent.contract.state import ApplyReport, Refusal, refuse
from placewire.agent.service import Service
from placewire.frozen import Frozen

log = logging.getLogger(__name__)

# The DNS name in the controller's certificate, whatever address the agent dials.
CONTROLLER_NAME = "controller"
# Between attempts; random, so that a hundred agents do not come back in one moment.
RECONNECT_SECONDS = (0.1, 0.6)
# A controller that listens and does not welcome us in time has too much to do, and began in vain:
# each such attempt doubles the pause, up to so many times.
MOST_DOUBLINGS = 4
# After an answer that a retry will not change: a wrong version, an unknown server.
REFUSED_SECONDS = 2.0
ANSWER_SECONDS = 5.0
# For a hello, which may take a connection and a handshake beside those of all other agents.
HELLO_SECONDS = 10.0
LOOK_AT_CERTIFICATE_SECONDS = 3600.0
REMEMBERED_REPLIES = 256
# The state of a large server with thousands of queues takes a few megabytes.
LARGEST_ANSWER_BYTES = 64 * 2**20
# How much is shown of a controller's reason to refuse, in bytes.
LONGEST_SAID = 2000


class ControllerRefusedError(Exception):
    """The controller answered, and refused."""


class CertificateUnusableError(Exception):
    """A file of the agent's certificate or its authority cannot be loaded."""


def tls_context(config: AgentConfig) -> ssl.SSLContext:
    """Raises CertificateUnusableError, which names the file."""
    file = config.authority_file
    try:
        context = ssl.create_default_context(cafile=file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        file = " or ".join(dict.fromkeys((config.certificate_file, config.key_file)))
        context.load_cert_chain(config.certificate_file, config.key_file)
    except OSError as error:
        raise CertificateUnusableError(f"{file}: {error.strerror or error}") from error
    return context


def _written(config: AgentConfig) -> tuple[tuple[int, int, int] | None, ...]:
    """Which versions of its files these are; None: one is not there."""

    def version(file: str) -> tuple[int, int, int] | None:
        try:
            found = Path(file).stat()
        except OSError:
            return None
        # A file that is moved there, or that another user may read now, keeps its mtime.
        return found.st_ino, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns)

    return tuple(
        version(file) for file in (config.authority_file, config.certificate_file, config.key_file)
    )


class ControllerConnection:
    """hello: called for each connection, in a thread, as it looks at the network. linked: set from
    a controller's welcome until the connection breaks."""

    def __init__(
        self,
        config: AgentConfig,
        service: Service,
        hello: Callable[[], Hello],
    ) -> None:
        self._config = config
        self._url = config.controller_url.rstrip("/")
        self._service = service
        self._hello = hello
        # It trusts nobody until its files could be loaded.
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The versions of these files that were loaded last, or could not be loaded.
        self._loaded: object = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._replies: OrderedDict[str, Frozen] = OrderedDict()
        self._session_id = ""
        self.linked = asyncio.Event()
        # How many hellos in a row were not answered in time.
        self._late = 0
        # The last logged reason why there is no controller.
        self._alone = ""
        self._looked_at_certificate = 0.0
        # Whether what the last hello said is not so any more, and the poll that ends then.
        self._has_news = False
        self._polling: asyncio.Timeout | None = None

    def greet_again(self) -> None:
        """Has another hello said, because the last one is not true any more. To be called in the
        event loop's thread."""
        if self._polling is not None and not self._has_news:
            self._polling.reschedule(asyncio.get_running_loop().time())
        self._has_news = True

    async def run(self) -> None:
        """Runs until cancelled. Requests under way go on while the controller is away."""
        await self._await_usable_context()
        async with aiohttp.ClientSession() as http:
            while True:
                pause = 0.0
                try:
                    self._load_what_was_brought()
                    await self._connect(http)
                except ControllerRefusedError as error:
                    log.warning("the controller refuses: %s", error)
                    pause += REFUSED_SECONDS
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self._say_alone(error)
                    pause += REFUSED_SECONDS if _is_tls(error) else 0.0
                except Exception:
                    # Neither a fault that passes (Open vSwitch restarts) nor a mistake of ours may
                    # end the daemon, whose timer undoes what must not last.
                    log.exception("the connection failed; trying again")
                    pause += REFUSED_SECONDS
                finally:
                    self.linked.clear()
                pause += random.uniform(*RECONNECT_SECONDS) * 2 ** min(self._late, MOST_DOUBLINGS)
                await asyncio.sleep(pause)

    async def _await_usable_context(self) -> None:
        """Waits until the files can be loaded: without them no controller is heard, but what the
        lease says is done all the same."""
        while True:
            try:
                self._loaded, self._context = _written(self._config), tls_context(self._config)
                return
            except CertificateUnusableError as error:
                if str(error) != self._alone:
                    log.error("no controller can be reached: %s; trying again", error)
                self._alone = str(error)
            await asyncio.sleep(REFUSED_SECONDS)

    def _load_what_was_brought(self) -> None:
        """Takes files that somebody wrote since, as `agent enrol` does beside a running agent whose
        certificate is denied. Those that cannot be loaded are told once, and change nothing."""
        if (written := _written(self._config)) == self._loaded:
            return
        self._loaded = written
        try:
            self._context = tls_context(self._config)
        except CertificateUnusableError as error:
            log.error("the files that were written since cannot be used: %s", error)
        else:
            log.info("its certificate was written anew, and is used from now on")

    async def _connect(self, http: aiohttp.ClientSession) -> None:
        """Polls until something goes wrong, or there is news for another hello."""
        # Most of the time no controller listens, and looking at the whole network to greet nobody
        # took 7 % of a core. A controller that was late does listen, and is not asked again.
        if not self._late:
            await self._require_listener()
        self._has_news = False
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
        log.info("connected to %s", self._url)
        self._alone, self._late = "", 0
        self.linked.set()
        await self._renew_if_due(http)
        poll = Poll(session=self._session_id)
        while not self._has_news:
            if time.monotonic() - self._looked_at_certificate > LOOK_AT_CERTIFICATE_SECONDS:
                await self._renew_if_due(http)
            self._take_all(http, await self._polled(http, poll))

    async def _polled(self, http: aiohttp.ClientSession, poll: Poll) -> Any:
        """The controller's requests. On news there are none: after the next hello a poll brings
        those that this one would have brought."""
        try:
            async with asyncio.timeout(None) as self._polling:
                return await self._post(http, "/v1/poll", poll, POLL_SECONDS + ANSWER_SECONDS)
        except TimeoutError:
            if self._has_news:
                return {"envelopes": []}
            raise
        finally:
            self._polling = None

    async def _renew_if_due(self, http: aiohttp.ClientSession) -> None:
        """Renews the certificate from half of its life on; new connections use the new one. What
        goes wrong is logged, and tried again later: the old certificate is still valid."""
        self._looked_at_certificate = time.monotonic()
        file = Path(self._config.certificate_file)
        if self._config.key_file != self._config.certificate_file:
            return  # The certificate was brought by hand: whoever brought it renews it.
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
            self._loaded = _written(self._config)
        except (OSError, ValueError, ControllerRefusedError) as error:
            log.warning("the certificate could not be renewed: %s", error)
        else:
            log.info("the certificate was renewed")

    def _say_alone(self, error: Exception) -> None:
        """Logs a reason once, not at every attempt: an agent is alone most of its life. An
        untrusted controller is another reason than no controller."""
        why = f"{type(error).__name__}: {error}" if _is_tls(error) else "nobody answers"
        if why != self._alone:
            if _is_tls(error):
                log.warning("no trusted connection to the controller: %s", error)
            else:
                log.info("no controller answers: %s", error)
        self._alone = why

    async def _require_listener(self) -> None:
        """Raises OSError or TimeoutError where nobody listens."""
        url = URL(self._url)
        # Not wait_for: before Python 3.12 it loses a cancellation that comes in the moment in which
        # what it waits for ends, and the agent would go on after SIGTERM.
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(url.host, url.port)
        writer.close()

    def _take_all(self, http: aiohttp.ClientSession, document: Any) -> None:
        """Raises ControllerRefusedError where `document` is no list of requests."""
        for envelope in _envelopes(document):
            self._take(http, envelope["id"], envelope.get("body"))

    def _take(self, http: aiohttp.ClientSession, identifier: str, body: Any) -> None:
        """Starts a request once, however often it is delivered."""
        if identifier not in self._tasks:
            task = asyncio.create_task(self._handle(http, identifier, body))
            self._tasks[identifier] = task
            task.add_done_callback(lambda _: self._tasks.pop(identifier, None))

    async def _handle(self, http: aiohttp.ClientSession, identifier: str, body: Any) -> None:
        """Does what a request asks, once, and replies until a controller has the reply."""
        answer = self._replies.get(identifier)
        if answer is None:
            answer = await self._answer(body)
            for refusal in _refusals(answer):
                log.warning("refused: %s", refusal.sentence)
            self._replies[identifier] = answer
            if len(self._replies) > REMEMBERED_REPLIES:
                self._replies.popitem(last=False)
        while not await self._tell(http, identifier, answer):
            await self.linked.wait()
            if http.closed:
                return  # The controller asks again over the next link, and gets the same answer.
            await asyncio.sleep(random.uniform(*RECONNECT_SECONDS))

    async def _tell(self, http: aiohttp.ClientSession, identifier: str, answer: Frozen) -> bool:
        """Sends a reply; returns False where it must be sent again."""
        if isinstance(answer, Refusal):
            reply = Reply(session=self._session_id, id=identifier, refusal=answer)
        else:
            result = answer.model_dump(mode="json")
            reply = Reply(session=self._session_id, id=identifier, result=result)
        try:
            await self._post(http, "/v1/replies", reply, ANSWER_SECONDS)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("reply %s could not be sent: %s", identifier, error)
            return False
        except ControllerRefusedError as error:
            log.warning("the controller refuses reply %s: %s", identifier, error)
        return True

    async def _answer(self, body: Any) -> Frozen:
        try:
            return await self._service.answer(body)
        except Exception as error:
            # A mistake of ours must be told to the controller, and must not end the daemon.
            log.exception("a request failed")
            what = f"the agent failed: {type(error).__name__}: {error}"
            return refuse("agent", what, "see the agent's log, and report it")

    async def _post(
        self, http: aiohttp.ClientSession, path: str, message: Frozen, seconds: float
    ) -> Any:
        async with http.post(
            self._url + path,
            json=message.model_dump(mode="json"),
            # Connections of former files stay for what they carry, and get nothing new.
            ssl=self._context,
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
    """The whole content. Raises ControllerRefusedError where it is too large."""
    data = bytearray()
    async for part in content.iter_any():
        data += part
        if len(data) > LARGEST_ANSWER_BYTES:
            raise ControllerRefusedError(f"its answer has more than {LARGEST_ANSWER_BYTES} bytes")
    return bytes(data)


def _is_tls(error: Exception) -> bool:
    """Whether somebody answers, but one side does not trust the other's certificate."""
    causes = (error, error.__cause__, getattr(error, "os_error", None))
    return any(isinstance(one, ssl.SSLError | aiohttp.ClientSSLError) for one in causes)


def _refusals(answer: Frozen) -> tuple[Refusal, ...]:
    if isinstance(answer, Refusal):
        return (answer,)
    return answer.refusals if isinstance(answer, ApplyReport | Previewed) else ()


def _envelopes(document: Any) -> list[dict[str, Any]]:
    """Bodies are judged later, so that an unknown one does not hide the others. Raises
    ControllerRefusedError."""
    envelopes = document.get("envelopes") if isinstance(document, dict) else None
    # An id must be such that it can be sent back unchanged.
    if not isinstance(envelopes, list) or not all(
        isinstance(e, dict) and isinstance(e.get("id"), str) and e["id"].isascii()
        for e in envelopes
    ):
        raise ControllerRefusedError("its list of requests is not understood")
    return envelopes
