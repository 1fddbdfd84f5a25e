"""Allocates bandwidth for a script that places itself, from the traffic between its servers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from placewire.frozen import Frozen
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.nics import usable_capacity
from placewire.optimizer.network.sharings import SHARINGS

# Amounts by source and destination server, all in one unit, whichever it is.
Traffic = Mapping[str, Mapping[str, float]]


class ScriptAllocation(Frozen):
    version: Literal[2] = 2
    cluster: Cluster
    sharing: SharingName
    floor: float
    traffic: Traffic
    rates_bits_per_second: tuple[tuple[str, str, str, float], ...]

    @model_validator(mode="before")
    @classmethod
    def _of_version_1(cls, document: Any) -> Any:
        if isinstance(document, dict) and document.get("version") == 1:
            renamed = {"floor" if key == "entitled" else key: v for key, v in document.items()}
            return {**renamed, "version": 2}
        return document

    @cached_property
    def talks(self) -> frozenset[tuple[str, str, str]]:
        rails = {server.name: {nic.rail for nic in server.nics} for server in self.cluster.servers}
        return frozenset(
            (source, destination, rail)
            for source, row in self.traffic.items()
            for destination, weight in row.items()
            if weight > 0
            for rail in rails[source] & rails[destination]
        )


def load_allocation(path: Path) -> ScriptAllocation:
    """Raises OSError, and ValueError where the file holds no allocation."""
    return ScriptAllocation.model_validate_json(path.read_bytes())


def even_traffic(cluster: Cluster) -> Traffic:
    names = [server.name for server in cluster.servers]
    return {source: {other: 1.0 for other in names if other != source} for source in names}


def allocate(
    cluster: Cluster, traffic: Traffic, sharing: SharingName, floor: float
) -> ScriptAllocation:
    """Allocates rates in proportion to traffic, as the sharing has them.

    traffic: between servers of the cluster, none to itself, no weight below 0. floor: the part of
    each NIC that a shaped network keeps for the job.
    """
    policy, names = SHARINGS[sharing], [server.name for server in cluster.servers]
    usable = usable_capacity(cluster, policy.kept_fraction(floor))
    weights = np.array([[traffic.get(s, {}).get(t, 0.0) for t in names] for s in names])
    rates = policy.rates_for_traffic(usable, weights)
    rows: tuple[tuple[str, str, str, float], ...] = ()
    if rates is not None:
        rows = tuple(
            (names[s], names[t], cluster.rails[r], float(rates[s, t, r]))
            for s, t, r in np.argwhere(rates > 0).tolist()
        )
    return ScriptAllocation(
        cluster=cluster, sharing=sharing, floor=floor, traffic=traffic, rates_bits_per_second=rows
    )
