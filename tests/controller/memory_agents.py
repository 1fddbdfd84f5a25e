"""Agents of servers in memory: the real link, service, keeper and store, real sockets and files.

As a program it is the agents of a cluster, in one process:

    python memory_agents.py        with Members on the first line of standard input

then lines:

    SERVER leaves REQUEST UNTIL    when it next gets that request, it loses its controller: for so
                                   many seconds, or until another server gets the request UNTIL;
                                   it does what it was asked, and nobody hears of it until then
    SERVER returns                 now

or Members again: these agents end, and others begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from placewire.agent.connection import controller_connection
from placewire.agent.connection.controller_connection import ControllerConnection
from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.measurement import (
    InterfaceCounters,
    Neighbour,
    Transfer,
    TransferResult,
)
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import NicFacts
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.validate import ServerFacts, WayToController
from placewire.agent.service import Service
from placewire.agent.store import DiskStore
from tests.agent.faults import NoFaults
from tests.agent.memory_drivers import MemoryNetwork
from tests.agent.memory_server import MANAGEMENT, NICS, MemoryServer

_MORE_SYSCTLS = ("rp_filter", "arp_announce")
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Member:
    """One server. host: the last byte of its addresses; folder: its state, with agent.pem and
    authority.crt. speeds: bit/s of NICs that say how fast they are."""

    server: str
    host: int
    folder: str
    tcp_port: int
    speeds: dict[str, int] = field(default_factory=dict)


class PlanServer(MemoryServer):
    """A server of tests/controller/plans.py."""

    def __init__(self, member: Member) -> None:
        self._member = member
        super().__init__()

    def boot(self) -> None:
        super().boot()
        for rail, nic in enumerate(NICS):
            others = [one for one in self.links[nic].addresses if ":" in one]
            self.links[nic].addresses = [f"10.7.{rail}.{self._member.host}/24", *others]
        self.links[MANAGEMENT].addresses = [f"10.9.0.{self._member.host}/24"]

    def switch_follows(self) -> None:
        super().switch_follows()
        for name in self.links:
            for key in _MORE_SYSCTLS:
                self.sysctls.setdefault(f"net.ipv4.conf.{name}.{key}", "0")

    def remove_link(self, name: str) -> None:
        super().remove_link(name)
        for key in _MORE_SYSCTLS:
            self.sysctls.pop(f"net.ipv4.conf.{name}.{key}", None)

    def _nics(self) -> tuple[NicFacts, ...]:
        return tuple(
            nic.model_copy(update={"speed_bits_per_second": self._member.speeds.get(nic.name)})
            for nic in super()._nics()
        )


class AsPromised:
    """Stands in for iperf3: every transfer got what it was promised."""

    async def start_servers(self, transfers: Sequence[Transfer], _: float) -> tuple[int, ...]:
        return tuple(transfer.tcp_port for transfer in transfers)

    async def run_transfers(
        self, transfers: Sequence[Transfer], seconds: float, start_unix: float
    ) -> tuple[TransferResult, ...]:
        return tuple(
            TransferResult(
                source=one.source, destination=one.destination, rail=one.rail, retransmits=0,
                measured_bits_per_second=one.promised_bits_per_second, seconds=seconds,
                start_unix=start_unix, end_unix=start_unix + seconds + 1,
            )
            for one in transfers
        )  # fmt: skip

    async def stop_servers(self) -> None:
        return None

    def read_counters(self, _: Sequence[str]) -> tuple[InterfaceCounters, ...]:
        return ()


class MemoryAgent:
    def __init__(self, member: Member) -> None:
        self.member, self.folder = member, Path(member.folder)
        self.server = PlanServer(member)
        self.config = AgentConfig(
            server=member.server,
            controller_url=f"https://127.0.0.1:{member.tcp_port}",
            certificate_file=str(self.folder / "agent.pem"),
            key_file=str(self.folder / "agent.pem"),
            authority_file=str(self.folder / "authority.crt"),
            state_dir=str(self.folder),
        )
        management = frozenset({f"10.9.0.{member.host}"})
        facts = ServerFacts(member.server, "netdev", (3, 1), frozenset({MANAGEMENT}))
        way = WayToController(management)
        network = MemoryNetwork(self.server, NoFaults())
        store = DiskStore(self.folder)
        self.keeper = Keeper(network, store, facts, lambda: way, read_back_seconds=0)
        self._leaving: dict[str, str] = {}
        self._gone_until = 0.0
        self.returns_with = ""
        self.on_request: Callable[[str], None] = lambda request: None
        self._service = Service(
            member.server,
            self.keeper,
            AsPromised(),  # type: ignore[arg-type]
            find_neighbours=self._neighbours,
        )
        self._link: ControllerConnection | None = None

    async def run(self) -> None:
        """Until cancelled; raises what is wrong with its certificate."""
        self._link = ControllerConnection(self.config, self._service, self._hello)
        answer = self._service.answer
        self._service.answer = lambda body: self._answer(answer, body)  # type: ignore[method-assign]
        linked: asyncio.Task[None] | None = None
        try:
            while True:
                self.keeper.tick()
                if time.monotonic() < self._gone_until:
                    await _ended(linked)
                    linked = None
                elif linked is None:
                    linked = asyncio.create_task(self._link.run())
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await _ended(linked)

    def leave(self, request: str, until: str) -> None:
        self._leaving[request] = until

    def come_back(self) -> None:
        self._gone_until, self.returns_with = 0.0, ""

    def picture(self) -> Any:
        """All that a message could change."""
        kept = (self.folder / name for name in ("state.json", "audit.jsonl"))
        return (
            self.keeper.lease,
            self.server.read_switch(),
            self.server.links,
            dict(self.server.sysctls),
            [file.read_bytes() for file in kept if file.exists()],
        )

    async def _answer(self, answer: Any, body: Any) -> Any:
        self.on_request(request := body.get("request"))
        until = self._leaving.pop(request, None)
        if until is not None:
            try:
                self._gone_until = time.monotonic() + float(until)
            except ValueError:
                self._gone_until, self.returns_with = math.inf, until
            await asyncio.sleep(_LOOK_SECONDS * 3)
        return await answer(body)

    def _hello(self) -> Hello:
        return Hello(
            server=self.member.server,
            agent_pid=1,
            instance=self.member.folder,
            capabilities=Capabilities(
                datapath="netdev", set_queue_honoured=False, open_vswitch_version="3.1.0",
                kernel_version="6.1", python_version="3.11", nics=self.server._nics(),
            ),
            lease=self.keeper.lease,
            management=f"10.9.0.{self.member.host}",
            protected=(MANAGEMENT,),
        )  # fmt: skip

    def _neighbours(
        self, interfaces: Sequence[str], addresses: Sequence[str]
    ) -> tuple[Neighbour, ...]:
        """Every NIC is on its rail."""
        return tuple(
            Neighbour(interface=name, address=address)
            for name in interfaces
            for address in addresses
            if address.startswith(f"10.7.{name[-1]}.")
        )


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def told(members: Sequence[Member]) -> str:
    """The line that begins these agents, and ends others."""
    return json.dumps([asdict(member) for member in members]) + "\n"


async def _serve(members: Sequence[Member], lines: asyncio.StreamReader) -> bytes:
    """Until a line that has other members, which is returned, or until there is none."""
    agents: Mapping[str, MemoryAgent] = {m.folder: MemoryAgent(m) for m in members}

    def on_request(request: str) -> None:
        for one in agents.values():
            if one.returns_with == request:
                one.come_back()

    for one in agents.values():
        one.on_request = on_request
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(agent.run()) for agent in agents.values()]
        print("ready", flush=True)
        while (line := await lines.readline()) and not line.startswith(b"["):
            server, what, *more = line.decode().split()
            for one in agents.values():
                if one.member.server == server:
                    one.leave(*more) if what == "leaves" else one.come_back()
            print("ready", flush=True)
        for task in running:
            task.cancel()
    return line


async def main() -> None:
    lines = asyncio.StreamReader(limit=2**20)
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    # A cluster of tests is made and left every few seconds.
    controller_connection.RECONNECT_SECONDS = (0.01, 0.05)
    line = await lines.readline()
    while line:
        line = await _serve([Member(**one) for one in json.loads(line)], lines)


if __name__ == "__main__":
    asyncio.run(main())
