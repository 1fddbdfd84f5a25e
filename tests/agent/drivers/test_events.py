"""Which messages of kernel and database concern us, and the dialogue with Open vSwitch."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyroute2.netlink import rtnl

from placewire.agent.contract.config import AgentConfig
from placewire.agent.drivers import database_events
from placewire.agent.drivers.flow_events import FlowsUnwatchedError, follow_flows
from placewire.agent.drivers.kernel_events import KernelEvents, messages
from placewire.agent.drivers.ovsdb_connection import connected
from placewire.agent.watching import Watching
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state


def attribute(kind: int, data: bytes) -> bytes:
    padded = data + bytes(-len(data) % 4)
    return struct.pack("=HH", 4 + len(data), kind) + padded


def link(index: int, name: str) -> bytes:
    return struct.pack("=BxHiII", 0, 1, index, 0, 0) + attribute(3, name.encode() + b"\0")


def of_index(index: int) -> bytes:
    """The beginning of a message about an address or a queue."""
    return struct.pack("=BBBBi", 2, 24, 0, 0, index)


def route(table: int, protocol: int, interface: int) -> bytes:
    head = struct.pack("=BBBBBBBBI", 2, 24, 0, 0, 252, protocol, 0, 1, 0)
    return (
        head + attribute(15, struct.pack("=I", table)) + attribute(4, struct.pack("=i", interface))
    )


def netconf(index: int) -> bytes:
    return struct.pack("=Bxxx", 2) + attribute(1, struct.pack("=i", index))


@pytest.fixture
def events() -> KernelEvents:
    """A KernelEvents that knows nic0 as number 7."""
    made = KernelEvents(lambda: None)
    made._names = frozenset({"nic0", "pw-nic0"})
    assert made.concerns(rtnl.RTM_NEWLINK, link(7, "nic0"))
    return made


@pytest.mark.parametrize(
    "kind, body, ours",
    [
        (rtnl.RTM_NEWLINK, link(9, "pw-nic0"), True),
        (rtnl.RTM_DELLINK, link(7, "renamed"), True),
        (rtnl.RTM_NEWLINK, link(8, "docker0"), False),
        (rtnl.RTM_DELADDR, of_index(7), True),
        (rtnl.RTM_NEWADDR, of_index(8), False),
        (rtnl.RTM_NEWTCLASS, of_index(7), True),
        (rtnl.RTM_DELTFILTER, of_index(7), True),
        (rtnl.RTM_DELQDISC, of_index(8), False),
        (rtnl.RTM_NEWROUTE, route(254, 4, 8), False),
        (rtnl.RTM_DELROUTE, route(254, 4, 7), True),
        (rtnl.RTM_DELROUTE, route(254, 80, 8), True),
        (rtnl.RTM_NEWROUTE, route(8001, 4, 8), True),
        (rtnl.RTM_DELRULE, b"", True),
        (80, netconf(-1), True),
        (80, netconf(7), True),
        (80, netconf(8), False),
        (rtnl.RTM_NEWNEIGH, of_index(7), False),
    ],
)
def test_what_concerns_us(events: KernelEvents, kind: int, body: bytes, *, ours: bool) -> None:
    assert events.concerns(kind, body) is ours


def test_an_interface_that_comes_is_known_from_then_on(events: KernelEvents) -> None:
    assert not events.concerns(rtnl.RTM_NEWADDR, of_index(12))
    assert events.concerns(rtnl.RTM_NEWLINK, link(12, "pw-nic0"))
    assert events.concerns(rtnl.RTM_NEWADDR, of_index(12))


def test_a_datagram_holds_several_messages_and_a_cut_one_ends_it() -> None:
    def message(kind: int, body: bytes) -> bytes:
        return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body

    data = message(16, b"abcd") + message(17, b"efgh1234")
    assert [*messages(data)] == [(16, b"abcd"), (17, b"efgh1234")]
    assert [*messages(data + b"\x01\x00")] == [*messages(data)]
    assert [*messages(bytes(16))] == []


@pytest.mark.parametrize(
    "row, ours",
    [
        ({"name": "nic0", "external_ids": {"placewire": "p"}}, True),
        ({"external_ids": {"placewire": "p"}}, True),
        ({"name": "pw-nic0", "external_ids": {}}, True),
        ({"name": "br-int", "external_ids": {"neutron": "x"}}, False),
        ({}, False),
    ],
)
def test_rows_that_concern_us(row: dict[str, object], *, ours: bool) -> None:
    assert database_events.concerns(SimpleNamespace(**row)) is ours


class Switch:
    """The other end of a bridge's management socket."""

    def __init__(self, replies: list[bytes]) -> None:
        self.received: list[tuple[int, bytes]] = []
        self._replies = replies
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(2):
            _, kind, length, _ = struct.unpack("!BBHI", await reader.readexactly(8))
            self.received.append((kind, await reader.readexactly(length - 8)))
        for reply in self._replies:
            writer.write(reply)
        await writer.drain()
        if self._replies and self._replies[0][1] == 2:
            head = struct.unpack("!BBHI", await reader.readexactly(8))
            self.received.append((head[1], await reader.readexactly(head[2] - 8)))
        writer.close()


def of(kind: int, body: bytes = b"", number: int = 0) -> bytes:
    return struct.pack("!BBHI", 1, kind, 8 + len(body), number) + body


async def told(directory: Path, switch: Switch, words: int) -> list[str]:
    """The first words that are said, however long they take."""
    said: list[str] = []
    enough = asyncio.Event()

    def say(word: str) -> None:
        said.append(word)
        if len(said) >= words:
            enough.set()

    server = await asyncio.start_unix_server(switch.serve, directory / "pw-nic0.mgmt")
    async with server, asyncio.timeout(60):
        following = asyncio.create_task(
            follow_flows(str(directory), "pw-nic0", lambda: say("flows"), lambda: say("switch"))
        )
        ending = asyncio.create_task(enough.wait())
        await asyncio.wait([following, ending], return_when=asyncio.FIRST_COMPLETED)
        for task in (following, ending):
            task.cancel()
        if following.done():
            await following
        return said


def test_flows_that_change_and_a_switch_that_goes_are_told(tmp_path: Path) -> None:
    switch = Switch([of(2, b"ping", 5), of(17, b"first", 1), of(17, b"event"), of(12, b"port")])
    said = asyncio.run(told(tmp_path, switch, words=4))
    assert said[:4] == ["flows", "switch", "switch", "flows"], "once each, gone, and there again"
    assert switch.connections >= 2
    hello, request, echo = switch.received[:3]
    assert hello == (0, b"") and echo == (3, b"ping")
    assert request[0] == 16 and len(request[1]) == 16 + 16 and request[1][4:8] == b"\0\0\x23\x20"


def test_a_switch_that_refuses_to_tell_is_not_asked_for_ever(tmp_path: Path) -> None:
    with pytest.raises(FlowsUnwatchedError):
        asyncio.run(told(tmp_path, Switch([of(1, b"\0\1\0\1")]), words=100))


class Noticed:
    def __init__(self) -> None:
        self.times = 0

    def notice(self, *, switch_restarted: bool = False) -> None:
        self.times += 1


def test_it_is_listened_while_something_is_in_force_and_never_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no database and no switch, and the kernel does not tell."""

    def refused(*_: object) -> None:
        raise PermissionError("netlink")

    monkeypatch.setattr(KernelEvents, "open", refused)
    config = AgentConfig(
        server="s1", controller_url="https://x", certificate_file="", key_file="",
        authority_file="", state_dir=str(tmp_path), ovsdb_remote=f"unix:{tmp_path}/db.sock",
        openvswitch_run_dir=str(tmp_path),
    )  # fmt: skip

    def listening() -> int:
        return sum(thread.name == "ovsdb events" for thread in threading.enumerate())

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.01)

    async def run() -> None:
        watching, desired = Watching(config, noticed), desired_state()  # type: ignore[arg-type]
        watching.follow(desired, frozenset({"nic0"}))
        await until(lambda: listening() == 1 and noticed.times > 0)
        assert len(asyncio.all_tasks()) == 1 + len(desired.bridges)
        tasks = asyncio.all_tasks()
        watching.follow(desired, frozenset({"nic0"}))
        assert asyncio.all_tasks() == tasks, "the same state: nothing anew"
        watching.follow(None, frozenset())
        await until(lambda: len(asyncio.all_tasks()) == 1)

    noticed = Noticed()
    asyncio.run(run())
    assert noticed.times, "that there is no switch is told"
    wait_for(lambda: not listening(), "the end of the thread")


def descriptors_left(config: AgentConfig) -> int:
    """How many more are open after some threads have read the database, one after the other."""

    def read() -> None:
        with connected(config.ovsdb_remote):
            pass

    def count() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = count()
    for _ in range(3):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    return count() - before


@pytest.mark.network
def test_a_thread_that_read_the_database_leaves_no_descriptor(server: ServerUnderTest) -> None:
    assert server.inside(descriptors_left, server.config) == 0
