"""Serves the metrics of a run while its command goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from placewire.controller.errors import UsageError
from placewire.controller.metrics.run_metrics import exposition
from placewire.controller.metrics.run_state import RunState
from placewire.metrics_server import LOOPBACK, MetricsServer

SOCKET = "run-metrics.sock"
# Loss and names of a run are the business of the user who runs the controller.
SOCKET_MODE = 0o600


@asynccontextmanager
async def metrics_served(
    state: RunState, folder: Path, tcp_port: int | None, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """At a socket in the controller's folder, and at that port of the loopback. say: told where the
    socket cannot be made, without which the run goes on. Raises UsageError where the port, which
    the user asked for, cannot be had."""

    async def collect() -> str:
        return exposition(state)

    server = MetricsServer(collect)
    try:
        if tcp_port is not None:
            await _open_port(server, tcp_port)
        try:
            await server.open_socket(folder / SOCKET, SOCKET_MODE)
        except OSError as error:
            say(f"the run's metrics cannot be served at {folder / SOCKET}: {error}")
        yield
    finally:
        await server.close()


async def _open_port(server: MetricsServer, tcp_port: int) -> None:
    try:
        await server.open_port(tcp_port)
    except OSError as error:
        raise UsageError(
            f"--metrics-port {tcp_port}: it cannot be listened at: {error.strerror}",
            where=f"{LOOPBACK} port {tcp_port}",
            remedy="give another port; `ss -ltnp` shows who listens there",
        ) from error
