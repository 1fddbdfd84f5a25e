"""The receiving side of a measurement: one iperf3 server per transfer, each for one client."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import Coroutine
from ipaddress import IPv4Address
from pathlib import Path

from placewire.agent.contract.measurement import Transfer
from placewire.agent.measure.processes import Processes
from placewire.agent.reconcile.effects import EffectError

START_SECONDS = 5.0
LOOK_SECONDS = 0.02
# Of proc(5), net/tcp: sockets of this network namespace, addresses as the processor stores them.
_SOCKETS, _LISTENING = Path("/proc/self/net/tcp"), "0A"


class Iperf3Servers:
    """Ends what it started: when stopped, and by itself after the time that was asked for."""

    def __init__(self) -> None:
        self.processes = Processes()
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_start = asyncio.Lock()

    async def start(self, transfers: tuple[Transfer, ...], seconds: float) -> tuple[int, ...]:
        """TCP ports listened on, once all listen. Raises EffectError where one does not, with
        none left running, as when it is cancelled."""
        async with self._one_start:
            await self.stop()
            complete = False
            try:
                async with asyncio.TaskGroup() as group:
                    for transfer in transfers:
                        group.create_task(self._start_one(transfer))
                complete = True
            except ExceptionGroup as errors:
                said = "; ".join(str(error) for error in errors.exceptions)
                raise EffectError(said) from errors
            finally:
                if not complete:
                    await self.stop()
            self._hold(self._stop_after(seconds))
        return tuple(transfer.tcp_port for transfer in transfers)

    async def stop(self) -> None:
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await self.processes.end_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _hold(self, work: Coroutine[None, None, None]) -> None:
        """A task that nobody refers to may be collected in the middle of its work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.stop()

    async def _start_one(self, transfer: Transfer) -> None:
        address, port = transfer.destination_address, transfer.tcp_port
        try:
            process = await self.processes.start(
                "iperf3", "--server", "--one-off", "--json",
                "--bind", address, "--port", str(port),
            )  # fmt: skip
        except FileNotFoundError as error:
            raise EffectError("iperf3 is not installed on this server") from error
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while process.returncode is None and asyncio.get_running_loop().time() < deadline:
            if listens(process.pid, address, port):
                # Nobody reads on: a full pipe would stop the server.
                self._hold(self._drain(process))
                return
            await asyncio.sleep(LOOK_SECONDS)
        await self.processes.end(process)
        said = b" ".join(await process.communicate()).decode()
        raise EffectError(f"iperf3 does not listen on {address} port {port}: {_error(said)}")

    async def _drain(self, process: Process) -> None:
        await process.communicate()
        await self.processes.end(process)


def listens(process_id: int, address: str, port: int) -> bool:
    """Whether this process of ours does; another may have the TCP port."""
    wanted = f"{int.from_bytes(IPv4Address(address).packed, sys.byteorder):08X}:{port:04X}"
    rows = (line.split() for line in _SOCKETS.read_text().splitlines()[1:])
    found = {f"socket:[{row[9]}]" for row in rows if row[1] == wanted and row[3] == _LISTENING}
    if not found:
        return False
    try:
        held = [str(file.readlink()) for file in Path(f"/proc/{process_id}/fd").iterdir()]
    except FileNotFoundError:
        return False  # It ends just now, or closes something.
    return not found.isdisjoint(held)


def _error(said: str) -> str:
    """Of what iperf3 printed."""
    try:
        return str(json.loads(said)["error"])
    except (ValueError, KeyError, TypeError):
        return said.strip() or "silent"
