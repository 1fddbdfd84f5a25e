"""The receiving side of a measurement: one iperf3 server per transfer, each for one client."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process

from agent.contract.measurement import Transfer
from agent.measure.processes import end, end_all
from agent.reconcile.effects import EffectError

START_SECONDS = 5.0


class Iperf3Servers:
    """Ends what it started: when stopped, and by itself after the time that was asked for."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], Process] = {}
        self._reaper: asyncio.Task[None] | None = None

    async def start(self, transfers: tuple[Transfer, ...], seconds: float) -> tuple[int, ...]:
        """TCP ports listened on, once all listen. Raises EffectError where one does not, with
        none left running."""
        await self.stop()
        try:
            await asyncio.gather(*(self._start_one(transfer) for transfer in transfers))
        except EffectError:
            await self.stop()
            raise
        self._reaper = asyncio.create_task(self._stop_after(seconds))
        return tuple(transfer.tcp_port for transfer in transfers)

    async def stop(self) -> None:
        if self._reaper is not None and self._reaper is not asyncio.current_task():
            self._reaper.cancel()
        self._reaper = None
        running, self._running = list(self._running.values()), {}
        await end_all(running)

    async def _stop_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.stop()

    async def _start_one(self, transfer: Transfer) -> None:
        address, port = transfer.destination_address, transfer.tcp_port
        try:
            process = await asyncio.create_subprocess_exec(
                "iperf3", "--server", "--one-off", "--forceflush",
                "--bind", address, "--port", str(port),
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise EffectError("iperf3 is not installed on this server") from error
        self._running[address, port] = process
        assert process.stdout is not None and process.stderr is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                while line := await process.stdout.readline():
                    if b"Server listening" in line:
                        # Nobody reads on: a full pipe would stop the server.
                        asyncio.get_running_loop().create_task(_drain(process))
                        return
        except TimeoutError:
            await end(process)
        said = (await process.stderr.read()).decode().strip()
        raise EffectError(f"iperf3 does not listen on {address} port {port}: {said or 'silent'}")


async def _drain(process: Process) -> None:
    await process.communicate()
