"""An agent in memory: its server, its disk in a folder, and clocks that a test turns."""

from __future__ import annotations

from pathlib import Path

from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.validate import ServerFacts, WayToController
from placewire.agent.store import DiskStore
from tests.agent.faults import NoFaults
from tests.agent.memory_drivers import MemoryNetwork
from tests.agent.memory_server import MANAGEMENT, MemoryServer

FACTS = ServerFacts("s1", "netdev", (3, 1), frozenset({MANAGEMENT}))
WAY = WayToController(frozenset({"10.9.0.1"}))


class MemoryAgent:
    """boot_seconds: the clock that nobody sets. unix: the wall clock, which goes along with it."""

    def __init__(self, directory: Path) -> None:
        self.server = MemoryServer()
        self.network = MemoryNetwork(self.server, NoFaults())
        self.store = DiskStore(directory)
        self.directory = directory
        self.boot_id = "boot 1"
        self.boot_seconds = 1000.0
        self.unix = 1_700_000_000.0
        self.keeper = self._start()

    def _start(self) -> Keeper:
        return Keeper(
            self.network, self.store, FACTS, lambda: WAY, lambda: self.unix, 0,
            lambda: self.boot_seconds, lambda: self.boot_id,
        )  # fmt: skip

    def restart(self) -> None:
        """A new process of the agent, which has resumed what was on disk."""
        self.keeper = self._start()
        self.keeper.resume()

    def reboot(self, seconds: float = 60.0) -> None:
        self.boot_id, self.boot_seconds = self.boot_id + "'", 10.0
        self.unix += seconds
        self.server.boot()
        self.restart()

    def wait(self, seconds: float) -> None:
        """Lets time pass, and the agent do what is due."""
        self.boot_seconds += seconds
        self.unix += seconds
        self.keeper.save_again()
        self.keeper.tick()
