"""A MemoryServer as the oracle's snapshot has a server, without what other programs made: whether
that was touched, `Others` tells."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from placewire.oracle.snapshot import VERSION, Facts
from tests.agent.memory_server import MemoryServer, is_over, sysctls_of


def snapshot(server: MemoryServer, without: Collection[str] = ()) -> dict[str, Any]:
    """without: names of NICs whose own facts are left out, and of sysctls."""
    foreign = {row.name for row in server.bridges.values() if not row.ours}
    shaped_by_others = {
        port.name
        for row in server.bridges.values()
        for port in row.ports.values()
        if port.qos is not None and not port.qos.ours
    }
    above = {name for name, link in server.links.items() if link.above}
    links = {n: k for n, k in server.links.items() if n not in {*foreign, *without, *above}}
    facts: Facts = {
        "link": {name: {"MAC": link.mac, "up": link.up} for name, link in links.items()},
        "address": {
            f"{name} {address}": {
                flag: True
                for flag, those in (("noprefixroute", link.without_route), ("nodad", link.nodad))
                if address in those
            }
            for name, link in links.items()
            for address in link.addresses
            if address not in link.theirs
        },
        "route": {
            line: {}
            for line in server.main_routes
            if not any(is_over(line, name) for name in without)
        }
        | {route.key: route.model_dump() for route, ours in server.routes if ours},
        "rule": {rule.key: rule.model_dump() for rule, ours in server.rules if ours},
        "sysctl": {
            name: value
            for name, value in server.sysctls.items()
            if not any(name in (one, *sysctls_of(one)) for one in {*foreign, *without, *above})
        },
        "class": {
            f"{name} {number}": found.model_dump()
            for name, link in links.items()
            if name not in shaped_by_others
            for number, found in (link.classes or {}).items()
        },
        "filter": {
            f"{name} {classifier.key}": classifier.model_dump()
            for name, link in links.items()
            for classifier in link.classifiers
        },
        "bridge": {row.name: {} for row in server.bridges.values() if row.ours},
        "QoS": {f"of no port, {k}": {} for k, qos in enumerate(server.stray, start=1) if qos.ours},
        "flow": {
            f"{name} {row.destination}": {"queue": row.queue_id}
            for name, rows in server.flows.items()
            for row in rows
            if row.ours
        },
    }
    return {"version": VERSION, "facts": facts}
