"""Builds an agent's keeper, server facts and metrics from its configuration."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from placewire.agent.contract.config import AgentConfig
from placewire.agent.drivers.interface_names import interfaces_named
from placewire.agent.drivers.name_lookups import NameLookups
from placewire.agent.drivers.open_vswitch_version import open_vswitch_version
from placewire.agent.drivers.outgoing_interfaces import leaving_by
from placewire.agent.drivers.queue_counters import read_queue_counters
from placewire.agent.drivers.server import Server
from placewire.agent.interface_counters import read_counters
from placewire.agent.keep.keeper import Keeper
from placewire.agent.metrics.metrics import Known, exposition
from placewire.agent.reconcile.refusals_switch import version_numbers
from placewire.agent.reconcile.validate import ServerFacts, WayToController
from placewire.agent.store import DiskStore
from placewire.agent.timed_store import TimedStore

# The system gives the first name server five seconds before it asks the second. A later call has
# what came too late for this one.
WAY_SECONDS = 3.0
_LOOKUPS = NameLookups()


def build_keeper(config: AgentConfig, server: Server) -> Keeper:
    store = TimedStore(DiskStore(Path(config.state_dir)))
    return Keeper(server, store, server_facts(config, server), way_of(config))


def server_facts(config: AgentConfig, server: Server) -> ServerFacts:
    return ServerFacts(
        server=config.server,
        datapath=server.datapath,
        open_vswitch_version=version_numbers(open_vswitch_version(config.ovsdb_remote)),
        protected=frozenset(config.protected),
        traffic_control=server.traffic_control,
    )


def way_of(config: AgentConfig) -> Callable[[], WayToController]:
    return lambda: way_towards(config.controller_url)


def way_towards(url: str) -> WayToController:
    """Waits at most WAY_SECONDS for a name server, and then goes by what the name had before. A way
    by IPv6 has interfaces alone."""
    ways = _ways_towards(url)
    addresses = frozenset(own for own, _ in ways if ":" not in own)
    interfaces = frozenset(name for _, to in ways for name in leaving_by(to))
    return WayToController(addresses, interfaces, "" if addresses or interfaces else url)


def unknown_protected(config: AgentConfig) -> tuple[str, ...]:
    """The names in `protected` that no interface of this server has now. Raises EffectError."""
    known = interfaces_named(config.protected)
    return tuple(name for name in config.protected if name not in known)


def collector(config: AgentConfig, server: Server, keeper: Keeper) -> Callable[[], str]:
    """Returns a function that makes the metrics' text anew; a call of it may raise EffectError."""
    info = {
        "server": config.server,
        "version": version("placewire"),
        "datapath": server.datapath,
        "open_vswitch": open_vswitch_version(config.ovsdb_remote),
    }

    def collect() -> str:
        desired = keeper.desired
        nics = [shaper.nic for shaper in desired.shapers] if desired else []
        queues, counters = read_queue_counters(nics), read_counters(tuple(nics))
        return exposition(Known(info, keeper.lease, desired, keeper.drift, queues, counters))

    return collect


def _ways_towards(url: str) -> list[tuple[str, str]]:
    """(own address, the controller's) for each address that its name has, IPv6 too; empty while
    there is no route."""
    ways = []
    parts = urlsplit(url)
    places = _LOOKUPS.places(parts.hostname or "", parts.port or 443, WAY_SECONDS)
    for family, kind, address in places:
        with suppress(OSError), socket.socket(family, kind) as probe:
            # Only chooses a route; nothing is sent.
            probe.connect(address)
            ways.append((str(probe.getsockname()[0]), str(probe.getpeername()[0])))
    return ways
