"""Connects to a port again and again, without any certificate, until it is told to end.

    python strangers_process.py HOST:PORT IDLE SLOW ADDRESSES

IDLE connections say nothing, SLOW ones send a byte of a TLS greeting each second; they come from so
many loopback addresses. They take only processor time that nobody else wants: real strangers have
machines of their own. Prints how many were opened and closed, and how many are open.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys

# How a TLS 1.3 greeting begins: a handshake record, whose rest comes byte by byte.
_GREETING = bytes.fromhex("1603010200010001fc0303") + bytes(500)
_PAUSE_SECONDS = 0.05


class Strangers:
    def __init__(self, host: str, tcp_port: int, addresses: int) -> None:
        self._host, self._tcp_port, self._addresses = host, tcp_port, addresses
        self.opened = self.closed = self.open = 0

    async def one(self, number: int, *, slow: bool) -> None:
        source = number % self._addresses
        local = f"127.0.{source // 250}.{source % 250 + 2}"
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    self._host, self._tcp_port, local_addr=(local, 0)
                )
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self.opened += 1
            self.open += 1
            try:
                await self._stay(reader, writer, slow=slow)
            except OSError:
                pass
            finally:
                self.open -= 1
                self.closed += 1
                writer.close()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _stay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slow: bool
    ) -> None:
        if not slow:
            await reader.read()
            return
        closed = asyncio.ensure_future(reader.read())
        # The port may end a connection by a reset. That is no error here, but asyncio prints every
        # exception that nobody asks for.
        closed.add_done_callback(lambda done: done.cancelled() or done.exception())
        for byte in _GREETING:
            writer.write(bytes([byte]))
            done, _ = await asyncio.wait([closed], timeout=1.0)
            if done:
                return
        await closed


async def _run(host: str, tcp_port: int, idle: int, slow: int, addresses: int) -> None:
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    strangers = Strangers(host, tcp_port, addresses)
    tasks = [asyncio.create_task(strangers.one(n, slow=n >= idle)) for n in range(idle + slow)]
    while not ending.is_set():
        counts = f"opened {strangers.opened} closed {strangers.closed} open {strangers.open}"
        print(counts, flush=True)
        try:
            await asyncio.wait_for(ending.wait(), 1.0)
        except TimeoutError:
            continue
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    wanted = int(sys.argv[2]) + int(sys.argv[3]) + 64
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(wanted, 1024), most), most))
    host_name, _, tcp_port_text = sys.argv[1].rpartition(":")
    asyncio.run(_run(host_name, int(tcp_port_text), *map(int, sys.argv[2:5])))
