"""Puts all measuring on one server behind one object."""

from __future__ import annotations

import asyncio
import logging

from placewire.agent.contract.measurement import InterfaceCounters, Transfer, TransferResult
from placewire.agent.interface_counters import read_counters
from placewire.agent.measure.iperf3_clients import run_transfers
from placewire.agent.measure.iperf3_servers import Iperf3Servers
from placewire.agent.measure.processes import Processes

log = logging.getLogger(__name__)

# Killing and reaping takes milliseconds.
END_SECONDS = 3.0


class Iperf3Measuring:
    def __init__(self) -> None:
        self._servers = Iperf3Servers()
        self._clients = Processes()

    async def start_servers(
        self, transfers: tuple[Transfer, ...], seconds: float
    ) -> tuple[int, ...]:
        return await self._servers.start(transfers, seconds)

    async def run_transfers(
        self, transfers: tuple[Transfer, ...], seconds: float, start_unix: float
    ) -> tuple[TransferResult, ...]:
        return await run_transfers(transfers, seconds, start_unix, self._clients)

    async def stop_servers(self) -> None:
        await self._servers.stop()

    async def close(self) -> None:
        """Ends all processes that were started here; those left after END_SECONDS are killed."""
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._servers.stop()
                await self._clients.end_all()
        except TimeoutError:
            log.warning("measurements did not end in %.0f s", END_SECONDS)
        finally:
            self._servers.processes.kill_left()
            self._clients.kill_left()

    def read_counters(self, interfaces: tuple[str, ...]) -> tuple[InterfaceCounters, ...]:
        return read_counters(interfaces)
