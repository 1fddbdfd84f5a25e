"""Serves the agent's metrics on a Unix socket and, where the configuration says so, on a port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from placewire.agent.contract.config import AgentConfig
from placewire.agent.reconcile.effects import EffectError
from placewire.metrics_server import LOOPBACK, MetricsServer, NotKnownNow, loopback_port

log = logging.getLogger(__name__)

# The agent's group may read.
SOCKET_MODE = 0o660


async def serve_metrics(config: AgentConfig, collect: Callable[[], str]) -> MetricsServer:
    """collect: makes the text, in a thread; may raise EffectError. Where the server cannot listen,
    it only logs why: an agent without metrics is still an agent."""

    async def in_thread() -> str:
        try:
            return await asyncio.to_thread(collect)
        except EffectError as error:
            raise NotKnownNow(str(error)) from error

    server = MetricsServer(in_thread, log.error)
    path = Path(config.metrics_socket or f"{config.state_dir}/metrics.sock")
    try:
        await server.open_socket(path, SOCKET_MODE)
    except OSError as error:
        log.error("metrics cannot be served at %s: %s", path, error)
    if config.metrics_tcp_port is not None:
        try:
            await server.open_port(loopback_port(config.metrics_tcp_port))
        except OSError as error:
            place = f"{LOOPBACK} port {config.metrics_tcp_port}"
            log.error("metrics cannot be served at %s: %s", place, error)
    return server
