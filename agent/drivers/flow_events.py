"""Notifies when a bridge's flows change, and when ovs-vswitchd ends or is there again.

A monitor on the bridge's management socket (OpenFlow 1.0 with Nicira's flow monitor, nicira-ext.h)
tells of every flow that comes, goes or changes. The connection ends with ovs-vswitchd, which comes
back without any flow after a `kill -9`. Nothing is asked while nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

_HEADER = struct.Struct("!BBHI")  # version, type, length, transaction
_VERSION = 1
_HELLO, _ERROR, _ECHO_REQUEST, _ECHO_REPLY, _STATS_REQUEST, _STATS_REPLY = 0, 1, 2, 3, 16, 17
_MONITOR = struct.Struct("!HHIIxxxx IHHHBxxxxx")
_VENDOR_STATS, _NICIRA, _FLOW_MONITOR = 0xFFFF, 0x2320, 2
# Changes by anybody; not the flows that are there at the start.
_ADDED_DELETED_MODIFIED = 2 | 4 | 8
_ANY_PORT, _ALL_TABLES = 0xFFFF, 0xFF
_REQUEST_NUMBER = 1
# The first and the longest pause between attempts to connect while ovs-vswitchd is away.
RECONNECT_SECONDS = (0.25, 5.0)


class FlowsUnwatchedError(Exception):
    """Open vSwitch does not accept the monitor."""


async def follow_flows(
    run_dir: str, bridge: str, notice: Callable[[], None], restarted: Callable[[], None]
) -> None:
    """Runs until cancelled. notice: called when flows changed. restarted: called when ovs-vswitchd
    went, and when it is there again. Raises FlowsUnwatchedError."""
    path = str(Path(run_dir) / f"{bridge}.mgmt")
    pause, away = RECONNECT_SECONDS[0], False
    while True:
        with contextlib.suppress(OSError, EOFError):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                if away:
                    restarted()
                pause, away = RECONNECT_SECONDS[0], False
                await _follow(reader, writer, notice)
            finally:
                writer.close()
        if not away:
            restarted()
        away = True
        await asyncio.sleep(pause)
        pause = min(2 * pause, RECONNECT_SECONDS[1])


async def _follow(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notice: Callable[[], None]
) -> None:
    """Raises EOFError or OSError when the connection ends, and FlowsUnwatchedError."""
    writer.write(_message(_HELLO, b"", 0))
    writer.write(_message(_STATS_REQUEST, monitor_request(), _REQUEST_NUMBER))
    while True:
        _, kind, length, number = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        body = await reader.readexactly(length - _HEADER.size)
        if kind == _ECHO_REQUEST:
            writer.write(_message(_ECHO_REPLY, body, number))
        elif kind == _ERROR:
            raise FlowsUnwatchedError(f"Open vSwitch refuses the flow monitor: {body.hex()}")
        elif kind == _STATS_REPLY and number != _REQUEST_NUMBER:
            notice()


def monitor_request() -> bytes:
    return _MONITOR.pack(
        _VENDOR_STATS, 0, _NICIRA, _FLOW_MONITOR,
        1, _ADDED_DELETED_MODIFIED, _ANY_PORT, 0, _ALL_TABLES,
    )  # fmt: skip


def _message(kind: int, body: bytes, number: int) -> bytes:
    return _HEADER.pack(_VERSION, kind, _HEADER.size + len(body), number) + body
