"""Many agents in one process: the real link, service, keeper and store; networks in memory.

    python -m benchmarks.agent.many_agents FOLDER URL FIRST COUNT

On standard input `drop N`: the first N lose their connection again and again; `steady`: no more.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import create_autospec

from agent.contract.capabilities import Capabilities
from agent.contract.config import AgentConfig
from agent.contract.messages import Hello
from agent.keeper import Keeper
from agent.link import Link, tls_context
from agent.measure.measuring import Iperf3Measuring
from agent.reconcile.validate import ServerFacts
from agent.service import Service
from world import World

# Seconds for which an agent is linked, and for which it is gone.
LINKED, GONE = (0.5, 4.0), (0.05, 1.5)


class Agent:
    def __init__(self, folder: Path, url: str, number: int) -> None:
        self.name = f"s{number}"
        own = folder / self.name
        config = AgentConfig(
            server=self.name,
            controller_url=url,
            certificate_file=str(own / f"{self.name}.crt"),
            key_file=str(own / f"{self.name}.key"),
            authority_file=str(folder / "ca" / "authority.crt"),
            state_dir=str(own),
        )
        world = World(own)
        protected = frozenset({"10.9.0.1"})
        facts = ServerFacts(self.name, "netdev", (3, 1), frozenset({"mgmt"}), protected)
        keeper = Keeper(world.network, world.store, lambda: facts, verify_seconds=0)
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
        self._link = Link(
            config,
            service,
            lambda: hello.model_copy(update={"lease": keeper.lease}),
            tls_context(config),
        )
        self.drops = False

    async def run(self) -> None:
        """Its requests go on while it is gone; its link remembers what it has answered."""
        chance = random.Random(self.name)
        while True:
            linked = asyncio.create_task(self._link.run())
            try:
                while not self.drops:
                    await asyncio.sleep(0.1)
                await asyncio.sleep(chance.uniform(*LINKED))
            finally:
                linked.cancel()
                with suppress(asyncio.CancelledError):
                    await linked
            await asyncio.sleep(chance.uniform(*GONE))


async def serve(folder: Path, url: str, first: int, count: int) -> None:
    agents = [Agent(folder, url, number) for number in range(first, first + count)]
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
    running = [asyncio.create_task(agent.run()) for agent in agents]
    while line := await lines.get():
        dropping = int(line.split()[1]) if line.startswith("drop") else 0
        for agent in agents[:dropping]:
            agent.drops = True
        for agent in agents[dropping:]:
            agent.drops = False
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
