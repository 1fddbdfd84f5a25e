"""The receiving side of a measurement: runs one iperf3 server per transfer, for one client each."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import Coroutine
from ipaddress import IPv4Address
from pathlib import Path

from placewire.agent.contract.measurement import Transfer
from placewire.agent.measure.processes import Processes, output_of, why_not_started
from placewire.agent.reconcile.effects import EffectError

START_SECONDS = 5.0
LOOK_SECONDS = 0.02
# So much is kept of what a receiver prints that does not start.
LONGEST_COMPLAINT_BYTES = 4096
# proc(5), net/tcp: sockets of this network namespace, with addresses in the processor's byte order.
_SOCKETS, _LISTENING = Path("/proc/self/net/tcp"), "0A"


class Iperf3Servers:
    """Ends the servers when stopped, and by itself after the time that was asked for."""

    def __init__(self) -> None:
        self.processes = Processes()
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_start = asyncio.Lock()

    async def start(self, transfers: tuple[Transfer, ...], seconds: float) -> tuple[int, ...]:
        """Returns the TCP ports once all servers listen. Raises EffectError where one does not;
        then, and when cancelled, no server is left running."""
        async with self._one_start:
            await self.stop()
            complete = False
            try:
                async with asyncio.TaskGroup() as group:
                    for transfer in transfers:
                        group.create_task(self._start_or_say_why(transfer))
                complete = True
            except ExceptionGroup as errors:
                said = "; ".join(dict.fromkeys(str(error) for error in errors.exceptions))
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
        """Keeps a reference: a task without one may be collected in the middle of its work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.stop()

    async def _start_or_say_why(self, transfer: Transfer) -> None:
        try:
            await self._start_one(transfer)
        except FileNotFoundError as error:
            raise EffectError("iperf3 is not installed on this server") from error
        except OSError as error:
            raise EffectError(f"iperf3 cannot be started: {why_not_started(error)}") from error

    async def _start_one(self, transfer: Transfer) -> None:
        """Raises EffectError where it does not listen, and OSError where it cannot be started or
        looked at."""
        address, port = transfer.destination_address, transfer.tcp_port
        process = await self.processes.start(
            "iperf3", "--server", "--one-off", "--json",
            "--bind", address, "--port", str(port),
        )  # fmt: skip
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while process.returncode is None and asyncio.get_running_loop().time() < deadline:
            if listens(process.pid, address, port):
                # Its output must be read on, because a full pipe would stop the server.
                self._hold(self._drain(process))
                return
            await asyncio.sleep(LOOK_SECONDS)
        await self.processes.end(process)
        said = b" ".join(await output_of(process, LONGEST_COMPLAINT_BYTES)).decode(errors="replace")
        raise EffectError(f"iperf3 does not listen on {address} port {port}: {_error(said)}")

    async def _drain(self, process: Process) -> None:
        await output_of(process, 0)
        await self.processes.end(process)


def listens(process_id: int, address: str, port: int) -> bool:
    """Whether this process listens there; another process may have the TCP port."""
    wanted = f"{int.from_bytes(IPv4Address(address).packed, sys.byteorder):08X}:{port:04X}"
    rows = (line.split() for line in _SOCKETS.read_text().splitlines()[1:])
    found = {f"socket:[{row[9]}]" for row in rows if row[1] == wanted and row[3] == _LISTENING}
    if not found:
        return False
    try:
        held = [str(file.readlink()) for file in Path(f"/proc/{process_id}/fd").iterdir()]
    except FileNotFoundError:
        return False  # The process ends just now, or closes a file.
    return not found.isdisjoint(held)


def _error(said: str) -> str:
    """The error in what iperf3 printed."""
    try:
        return str(json.loads(said)["error"])
    except (ValueError, KeyError, TypeError):
        return said.strip() or "it said nothing"
