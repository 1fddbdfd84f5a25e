"""All measuring on one server behind one object."""

from __future__ import annotations

from agent.contract.measurement import InterfaceCounters, Transfer, TransferResult
from agent.measure.counters import read_counters
from agent.measure.iperf3_clients import run_transfers
from agent.measure.iperf3_servers import Iperf3Servers


class Iperf3Measuring:
    def __init__(self) -> None:
        self._servers = Iperf3Servers()

    async def start_servers(
        self, transfers: tuple[Transfer, ...], seconds: float
    ) -> tuple[int, ...]:
        return await self._servers.start(transfers, seconds)

    async def run_transfers(
        self, transfers: tuple[Transfer, ...], seconds: float, start_unix: float
    ) -> tuple[TransferResult, ...]:
        return await run_transfers(transfers, seconds, start_unix)

    async def stop_servers(self) -> None:
        await self._servers.stop()

    def read_counters(self, interfaces: tuple[str, ...]) -> tuple[InterfaceCounters, ...]:
        return read_counters(interfaces)
