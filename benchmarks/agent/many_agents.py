"""Runs many agents in one process: link, service, keeper and store are real, networks in memory.

    python -m benchmarks.agent.many_agents FOLDER URL FIRST COUNT DROPPABLE

From the line `drop` on standard input on, the first DROPPABLE agents lose their connection again
and again; from `steady` on, no longer.
"""

from __future__ import annotations

import asyncio
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from unittest.mock import create_autospec
from urllib.parse import urlsplit

from benchmarks.agent.cable import Cable
from placewire.agent.connection.controller_connection import ControllerConnection
from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.messages import Hello
from placewire.agent.keep.keeper import Keeper
from placewire.agent.measure.measuring import Iperf3Measuring
from placewire.agent.reconcile.validate import ServerFacts, WayToController
from placewire.agent.service import Service
from tests.agent.world import World

# So many agents of a process dial at once. If all did, their handshakes would share the process's
# time, and on a busy machine none would end before its limit.
DIALLING = 25
# An agent alone in its process has a few threads of its own. Hundreds of computing threads here
# would keep the one thread waiting that polls for all agents.
THREADS = 8
# Seconds for which an agent stays linked, and for which its link is then cut.
LINKED, GONE = (0.5, 4.0), (0.05, 1.5)


class Agent:
    """cable: this agent's own connection, where that can be cut. cuts: how often it was cut."""

    def __init__(self, folder: Path, url: str, number: int, cable: Cable | None) -> None:
        self.name = f"s{number}"
        self._cable = cable
        own = folder / self.name
        config = AgentConfig(
            server=self.name,
            controller_url=url if cable is None else cable.url,
            certificate_file=str(own / f"{self.name}.crt"),
            key_file=str(own / f"{self.name}.key"),
            authority_file=str(folder / "ca" / "authority.crt"),
            state_dir=str(own),
        )
        world = World(own)
        way = WayToController(frozenset({"10.9.0.1"}))
        facts = ServerFacts(self.name, "netdev", (3, 1), frozenset({"mgmt"}))
        keeper = Keeper(world.network, world.store, facts, lambda: way, read_back_seconds=0)
        hello = Hello(
            server=self.name,
            agent_pid=number,
            capabilities=Capabilities(
                datapath="netdev", set_queue_honoured=False, open_vswitch_version="3.1.0",
                kernel_version="6.1", python_version="3.11", nics=(),
            ),
            lease=keeper.lease,
        )  # fmt: skip
        service = Service(self.name, keeper, create_autospec(Iperf3Measuring))
        self._link = ControllerConnection(
            config,
            service,
            lambda: hello.model_copy(update={"lease": keeper.lease}),
        )
        self.linked, self.drops, self.cuts = self._link.linked, False, 0

    async def run(self) -> None:
        """Runs the link. Requests go on while it is cut, and the link remembers their answers."""
        linked = asyncio.create_task(self._link.run())
        try:
            await self._drop_now_and_then()
        finally:
            linked.cancel()
            with suppress(asyncio.CancelledError):
                await linked

    async def _drop_now_and_then(self) -> None:
        chance = random.Random(self.name)
        while True:
            await self.linked.wait()
            await asyncio.sleep(chance.uniform(*LINKED))
            if self.drops and self._cable is not None:
                await self._cable.cut(chance.uniform(*GONE))
                self.cuts += 1


async def serve(folder: Path, url: str, first: int, count: int, droppable: int) -> None:
    agents = []
    for number in range(count):
        cable = None
        if number < droppable:
            cable = Cable(urlsplit(url).hostname or "", urlsplit(url).port or 0)
            await cable.listen()
        agents.append(Agent(folder, url, first + number, cable))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
    running = []
    for begin in range(0, count, DIALLING):
        running += [asyncio.create_task(agent.run()) for agent in agents[begin : begin + DIALLING]]
        await asyncio.gather(*(agent.linked.wait() for agent in agents[begin : begin + DIALLING]))
    while line := await lines.get():
        for agent in agents:
            agent.drops = line.startswith("drop")
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])))
