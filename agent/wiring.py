"""Builds an agent's keeper, server facts and metrics from its configuration."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from placewire.agent.contract.config import AgentConfig
from placewire.agent.drivers.interfaces import leaving_by
from placewire.agent.drivers.queue_counters import read_queue_counters
from placewire.agent.drivers.server import Server, open_vswitch_version
from placewire.agent.keep.keeper import Keeper
from placewire.agent.metrics.metrics import Known, exposition
from placewire.agent.reconcile.validate import ServerFacts
from placewire.agent.store import DiskStore


def build_keeper(config: AgentConfig, server: Server) -> Keeper:
    return Keeper(server, DiskStore(Path(config.state_dir)), server_facts(config, server))


def server_facts(config: AgentConfig, server: Server) -> Callable[[], ServerFacts]:
    numbers = tuple(int(part) for part in re.findall(r"\d+", open_vswitch_version()))

    def facts() -> ServerFacts:
        return ServerFacts(
            server=config.server,
            datapath=server.datapath,
            open_vswitch_version=numbers,
            protected=frozenset(config.protected),
            protected_addresses=addresses_towards(config.controller_url),
            traffic_control=server.traffic_control,
            controller_interfaces=interfaces_towards(config.controller_url),
        )

    return facts


def collector(config: AgentConfig, server: Server, keeper: Keeper) -> Callable[[], str]:
    """Returns a function that makes the metrics' text anew; a call of it may raise EffectError."""
    info = {
        "server": config.server,
        "version": version("placewire"),
        "datapath": server.datapath,
        "open_vswitch": open_vswitch_version(),
    }

    def collect() -> str:
        desired = keeper.desired
        nics = [shaper.nic for shaper in desired.shapers] if desired else []
        counters = read_queue_counters(nics)
        return exposition(Known(info, keeper.lease, desired, keeper.drift, counters))

    return collect


def addresses_towards(url: str) -> frozenset[str]:
    """This server's address on the way to the controller; empty while there is no route."""
    return frozenset(own for own, _ in _ways_towards(url))


def interfaces_towards(url: str) -> frozenset[str]:
    """The interface by which packets leave for the controller; empty while there is no route. Its
    address may be that of another interface."""
    return frozenset(name for _, to in _ways_towards(url) for name in leaving_by(to))


def _ways_towards(url: str) -> list[tuple[str, str]]:
    """(own address, the controller's); empty while there is no route."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Only chooses a route; nothing is sent.
            probe.connect((parts.hostname or "", parts.port or 443))
        except OSError:
            return []
        return [(str(probe.getsockname()[0]), str(probe.getpeername()[0]))]
