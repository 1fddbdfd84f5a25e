"""Ten thousand bad messages through the agent's own link and service: none ends it, none changes
anything, and whatever can be answered is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from placewire.agent.connection.controller_connection import (
    ControllerConnection,
    ControllerRefusedError,
)
from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.messages import Hello, Request
from placewire.agent.contract.state import LeaseState
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.unmarkable import Unmarked
from placewire.agent.service import Service
from placewire.agent.store import DiskStore
from placewire.job.contract.specification import RailInterface, RankSpec, parse_rank_event
from tests.agent.contract.bad_messages import REQUESTS, BadMessage, bad_documents, bad_messages
from tests.agent.fault_link import InlineExecutor
from tests.agent.fault_run import CONFIG, FACTS, WAY
from tests.agent.faults import NoFaults
from tests.agent.memory_disk import MemoryDisk, store_on_memory_disks
from tests.agent.memory_drivers import MemoryNetwork
from tests.agent.memory_server import MemoryServer
from tests.agent.states import desired_state

MESSAGES = 10_000
HELLO = Hello(
    server="s1", agent_pid=1, lease=LeaseState(phase="idle", generation=0),
    capabilities=Capabilities(datapath="netdev", set_queue_honoured=False, nics=(),
                              open_vswitch_version="3.1", kernel_version="6", python_version="3"),
)  # fmt: skip


class NothingMeasured:
    """Stands in for iperf3."""

    def __init__(self) -> None:
        self.asked = 0

    async def start_servers(self, *_: object) -> tuple[int, ...]:
        self.asked += 1
        return ()

    async def run_transfers(self, *_: object) -> tuple[()]:
        self.asked += 1
        return ()

    async def stop_servers(self) -> None:
        self.asked += 1

    def read_counters(self, _: object) -> tuple[()]:
        self.asked += 1
        return ()


class ControllerGoneWrong:
    """Stands in for the HTTP session: its polls return these bytes, then nobody is there."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.replies: list[Any] = []
        self.failures: list[BaseException] = []
        self.link: ControllerConnection | None = None

    @asynccontextmanager
    async def post(self, url: str, *, json: Any, **_: object) -> Any:
        if url.endswith("/v1/replies"):
            self.replies.append(json)
        if url.endswith("/v1/poll"):
            await self._requests_under_way()
            if not self.waiting:
                raise ConnectionResetError
            yield Answer(self.waiting.pop())
        else:
            yield Answer(b'{"session": "session-1"}')

    async def _requests_under_way(self) -> None:
        assert self.link is not None
        tasks = list(self.link._tasks.values())
        found = await asyncio.gather(*tasks, return_exceptions=True)
        self.failures += [error for error in found if isinstance(error, BaseException)]


class Answer:
    status = 200

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def content(self) -> Answer:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self._data


class AgentInMemory:
    """An agent in memory with generation 3 committed for good."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        striker = NoFaults()
        self._loop = loop
        self.server = MemoryServer()
        self.disk = MemoryDisk(striker)
        self.measuring = NothingMeasured()
        self.controller = ControllerGoneWrong()
        store = DiskStore(self.disk.root)  # type: ignore[arg-type]
        network = MemoryNetwork(self.server, striker)
        self.keeper = Keeper(network, store, FACTS, lambda: WAY, lambda: 1e9, 0, lambda: 1e3)
        self.keeper.stage(desired_state(3), 10)
        self.keeper.commit(3, None)
        service = Service("s1", self.keeper, self.measuring)  # type: ignore[arg-type]
        self._link = ControllerConnection(CONFIG, service, lambda: HELLO)
        self._link._require_listener = self._listens  # type: ignore[method-assign]
        self.controller.link = self._link

    async def _listens(self) -> None:
        pass

    def picture(self) -> tuple[object, ...]:
        kept = (self.disk.root / name for name in ("state.json", "audit.jsonl"))
        everything = Unmarked(sysctls=frozenset(self.server.sysctls))
        rows = (self.server.read(self.server.read_switch(), everything),)
        return (self.keeper.lease, self.measuring.asked, rows, *(f.read_bytes() for f in kept))

    def take(self, message: BadMessage) -> None:
        """What the link makes of a message, as ControllerConnection.run does."""
        self.controller.waiting.append(message.data)
        self._link._replies.clear()
        with contextlib.suppress(ControllerRefusedError, ConnectionResetError):
            self._loop.run_until_complete(self._link._connect(self.controller))  # type: ignore[arg-type]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(InlineExecutor())
    former = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with store_on_memory_disks():
            yield loop
    finally:
        logging.disable(former)
        loop.close()


@pytest.mark.slow
def test_no_bad_message_ends_the_agent_or_changes_anything(
    loop: asyncio.AbstractEventLoop,
) -> None:
    agent = AgentInMemory(loop)
    picture = agent.picture()
    taken: Counter[str] = Counter()
    unlooked: list[str] = []  # What no agent may take for a request, since the last look.
    for message in bad_messages(5, MESSAGES):
        said = f"{message.kind}: {message.data[:300]!r}"
        if unlooked and not message.refused:
            assert agent.picture() == picture, unlooked
            unlooked.clear()
        agent.controller.replies.clear()
        agent.take(message)
        assert agent.controller.failures == [], said
        replies = agent.controller.replies
        assert "the agent failed" not in str(replies), f"{said}: {replies}"
        if message.refused:
            assert not _was_done(replies), f"{said}: {replies}"
            unlooked.append(said)
            taken[message.kind] += 1
            continue
        now = agent.picture()
        if not _was_done(replies):
            assert now == picture, said
            taken[message.kind] += 1
        elif now != picture:
            agent = AgentInMemory(loop)  # It was a request by chance.
    assert agent.picture() == picture, unlooked
    assert sum(taken.values()) > 0.8 * MESSAGES
    assert min(taken.values()) > 0.02 * MESSAGES and len(taken) == 10, taken


def _was_done(replies: list[Any]) -> bool:
    return any(
        reply["refusal"] is None and reply["result"].get("succeeded", True) for reply in replies
    )


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: r.request)
def test_what_was_mutated_is_understood_as_it_was(
    loop: asyncio.AbstractEventLoop, request_: Any
) -> None:
    """Without this, an agent that refuses everything would pass the test above."""
    agent = AgentInMemory(loop)
    body = {"envelopes": [{"id": "m1", "body": request_.model_dump(mode="json")}]}
    agent.take(BadMessage("none", json.dumps(body).encode(), False))
    (reply,) = agent.controller.replies
    assert "not understood" not in str(reply["refusal"])


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e12])
@pytest.mark.parametrize("verb", ["stage", "renew", "commit"])
def test_a_lease_without_end_is_not_understood(verb: str, seconds: float) -> None:
    """Such a lease would never run out, or come back from disk as one that is kept."""
    (body,) = (r.model_dump(mode="json") for r in REQUESTS if r.request == verb)  # type: ignore[attr-defined]
    adapter: TypeAdapter[Any] = TypeAdapter(Request)
    assert adapter.validate_python({**body, "lease_seconds": 10.0})
    with pytest.raises(ValidationError, match="lease_seconds"):
        adapter.validate_python({**body, "lease_seconds": seconds})


def test_bad_rank_specs_and_events_are_refused() -> None:
    spec = RankSpec(
        kind="placed", rank=0, world_size=2, device="s1/0", master_address="10.7.0.1",
        master_tcp_port=29500, placement_file="/p.json", steps=3,
        rail_interfaces=(RailInterface(rail="r0", interface="pw-nic0", address="10.7.0.1"),),
    ).model_dump(mode="json")  # fmt: skip
    event = {"event": "step", "rank": 1, "step": 2, "seconds": 0.1, "loss": 3.5}
    rng = random.Random(3)
    for _ in range(200):
        for data in bad_documents(rng, spec):
            with pytest.raises(ValidationError):
                RankSpec.model_validate_json(data)
        for data in bad_documents(rng, event):
            with pytest.raises(ValidationError):
                parse_rank_event(data)
