"""Groups the servers on which the same things were changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placewire.controller.records.report import RunReport


@dataclass(frozen=True)
class ChangesOfServers:
    """count: of each server's changes. what: of which kinds, in words."""

    servers: tuple[str, ...]
    count: int
    what: str
    generation: str


def changes_of_servers(report: RunReport) -> tuple[ChangesOfServers, ...]:
    """In the order of the report's servers."""
    alike: dict[tuple[int, str, str], list[str]] = {}
    for server, count in report.changes.items():
        what = _words(report.changed.get(server, {}))
        generation = str(report.generations.get(server, ""))
        alike.setdefault((count, what, generation), []).append(server)
    return tuple(ChangesOfServers(tuple(servers), *same) for same, servers in alike.items())


def _words(counts: Mapping[str, int]) -> str:
    """counts: as RunReport.changed has them."""
    words = ((what.partition(" "), count) for what, count in counts.items())
    return ", ".join(f"{action} {count} {kind}" for (action, _, kind), count in words)
