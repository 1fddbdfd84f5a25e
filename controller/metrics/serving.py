"""Serves the metrics of a run while its command goes on.

A lab's command runs in a network of its own, whose loopback nobody else reaches. So the port is
made before the command enters that network, and passed on to it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from placewire.controller.errors import UsageError
from placewire.controller.metrics.run_metrics import exposition
from placewire.controller.metrics.run_state import RunState
from placewire.metrics_server import LOOPBACK, MetricsServer, loopback_port

SOCKET = "run-metrics.sock"
# Loss and names of a run are the business of the user who runs the controller.
SOCKET_MODE = 0o600
# Has the descriptor of the port, in the environment of a lab's command.
DESCRIPTOR_VARIABLE = "PLACEWIRE_METRICS_PORT_DESCRIPTOR"


@asynccontextmanager
async def metrics_served(
    state: RunState, folder: Path, tcp_port: int | None, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """At a socket in the controller's folder, and at that port of the loopback. say: told where the
    socket cannot be made, or metrics cannot, without which the run goes on. Raises UsageError where
    the port, which the user asked for, cannot be had."""

    async def collect() -> str:
        return exposition(state)

    server = MetricsServer(collect, say)
    try:
        if tcp_port is not None:
            await server.open_port(_passed_on() or _port(tcp_port))
        try:
            await server.open_socket(folder / SOCKET, SOCKET_MODE)
        except OSError as error:
            say(f"the run's metrics cannot be served at {folder / SOCKET}: {error}")
        yield
    finally:
        await server.close()


def pass_port_on(tcp_port: int | None) -> Mapping[str, str]:
    """Makes the port in the network that this process is in, and returns what the program that it
    becomes needs in its environment. Raises UsageError as above."""
    if tcp_port is None:
        return {}
    descriptor = _port(tcp_port).detach()
    os.set_inheritable(descriptor, True)
    return {DESCRIPTOR_VARIABLE: str(descriptor)}


def _passed_on() -> socket.socket | None:
    """The port that this program was begun with; no program that it begins has it. Raises
    UsageError where the variable was left from another program."""
    descriptor = os.environ.pop(DESCRIPTOR_VARIABLE, None)
    if descriptor is None:
        return None
    try:
        port = socket.socket(fileno=int(descriptor))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{DESCRIPTOR_VARIABLE}={descriptor}: no port is open there",
            where="environment",
            remedy=f"unset {DESCRIPTOR_VARIABLE}; `apply` alone sets it, for itself in a lab",
        ) from error
    port.set_inheritable(False)
    return port


def _port(tcp_port: int) -> socket.socket:
    try:
        return loopback_port(tcp_port)
    except OSError as error:
        raise UsageError(
            f"--metrics-port {tcp_port}: it cannot be listened at: {error.strerror}",
            where=f"{LOOPBACK} port {tcp_port}",
            remedy="give another port; `ss -ltnp` shows who listens there",
        ) from error
