"""A small controller for tests: mutual TLS, the link's three paths, and requests by hand."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import socket
import ssl
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from aiohttp import web

from placewire.controller.agents.authority import Authority, Kind
from placewire.frozen import Frozen
from tests.agent.server_under_test import (
    CONTROLLER_ADDRESS,
    ServerUnderTest,
    enter_namespace,
    wait_for,
)

PORT = 7443


def write_certificates(directory: Path, controller_name: str = "controller") -> None:
    """Writes ca.crt, and agent and controller with a key each, to `directory`: what a controller
    issues."""
    kinds: tuple[tuple[str, str, Kind], ...]
    kinds = (("agent", "s1", "agent"), ("controller", controller_name, "controller"))
    with tempfile.TemporaryDirectory() as scratch:
        authority = Authority.load(Path(scratch))
        files = {"ca.crt": authority.certificate_file}
        for stem, name, kind in kinds:
            issued = authority.issue(name, kind, Path(scratch), lifetime_seconds=3600)
            files |= {f"{stem}.crt": issued.certificate_file, f"{stem}.key": issued.key_file}
        for name, file in files.items():
            (directory / name).write_bytes(file.read_bytes())


class ControllerDouble:
    """Runs in a thread of its own, on a socket in the peer's namespace."""

    def __init__(self, server: ServerUnderTest) -> None:
        self.hellos: list[Any] = []
        self.replies: dict[str, Any] = {}
        self.deliveries = 1
        # How long a poll waits for a request.
        self.poll_seconds = 1.0
        # What happens to the next message: "lost", "cut" or "reply lost"; "" again afterwards.
        self.spoil = ""
        self._name = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)
        self._waiting: list[dict[str, Any]] = []
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ControllerDouble:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(60)
        assert not self._thread.is_alive(), "else its port stays taken"

    def send(self, request: Frozen | dict[str, Any]) -> str:
        """Returns the id of the request."""
        body = request if isinstance(request, dict) else request.model_dump(mode="json")
        # Agents remember their answers by id, so another controller needs other ids.
        identifier = f"{self._name}-{next(self._numbers)}"
        self._waiting.append({"id": identifier, "body": body})
        return identifier

    def withdraw(self, identifier: str) -> None:
        """Drops a request that no agent has taken yet, as a command does that gives up and ends."""

        def drop() -> None:
            self._waiting = [one for one in self._waiting if one["id"] != identifier]

        # In the loop's own thread, which hands requests out.
        self._loop.call_soon_threadsafe(drop)

    def ask(self, request: Frozen | dict[str, Any], seconds: float = 60) -> Any:
        """Returns the reply as JSON."""
        identifier = self.send(request)
        return wait_for(lambda: self.replies.get(identifier), str(request)[:80], seconds)

    def wait_for_agent(self, number: int = 1) -> Any:
        return wait_for(lambda: len(self.hellos) >= number and self.hellos[-1], "an agent")

    def _run(self, ready: threading.Event) -> None:
        enter_namespace(self._server.peer)
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        here = self._server.directory
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(here / "ca.crt"))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(here / "controller.crt", here / "controller.key")
        app = web.Application()
        app.router.add_post("/v1/hello", self._hello)
        app.router.add_post("/v1/poll", self._poll)
        app.router.add_post("/v1/replies", self._reply)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        listener = socket.create_server((str(ipaddress.ip_address(CONTROLLER_ADDRESS)), PORT))
        await web.SockSite(self._runner, listener, ssl_context=context).start()

    async def _hello(self, request: web.Request) -> web.Response:
        self.hellos.append(await request.json())
        return web.json_response({"session": self._session})

    @property
    def _session(self) -> str:
        return f"session-{len(self.hellos)}"

    async def _poll(self, request: web.Request) -> web.Response:
        mine = (await request.json())["session"]
        until = time.monotonic() + self.poll_seconds
        while not self._waiting and time.monotonic() < until:
            await asyncio.sleep(0.05)
        if mine != self._session or request.transport is None or request.transport.is_closing():
            # The poll of an agent that was killed meanwhile: what it took would reach nobody.
            raise web.HTTPGone
        taken, self._waiting = self._waiting, []
        if taken and self.spoil in ("lost", "cut"):
            whole = web.json_response({"envelopes": taken}).body
            assert isinstance(whole, bytes)
            cut = whole[: len(whole) // 2] if self.spoil == "cut" else b'{"envelopes": []}'
            self.spoil = ""
            return web.Response(body=cut, content_type="application/json")
        return web.json_response({"envelopes": taken * self.deliveries})

    async def _reply(self, request: web.Request) -> web.Response:
        reply = await request.json()
        if self.spoil == "reply lost":
            self.spoil = ""
            return web.json_response({})
        assert reply["id"] not in self.replies, "one reply per request"
        self.replies[reply["id"]] = reply
        return web.json_response({})
