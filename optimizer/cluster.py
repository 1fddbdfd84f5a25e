"""The cluster as the optimizer sees it: devices, and how fast servers reach each other per rail.

All rates are payload bits per second: what a transfer gets, framing already taken off.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of the file nouns: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))


class Device(Frozen):
    type: str
    memory_bytes: int


class Nic(Frozen):
    """One NIC of one server. A server has at most one NIC on a rail."""

    rail: str
    rate_bits_per_second: float


class Server(Frozen):
    name: str
    devices: tuple[Device, ...]
    nics: tuple[Nic, ...]


class Cluster(Frozen):
    """servers in plan order; everything indexed by that order.

    setup_latency_seconds is p0 of the thesis (3.5). intra_server_bits_per_second joins two devices
    of one server.
    """

    servers: tuple[Server, ...]
    setup_latency_seconds: float
    intra_server_bits_per_second: float

    @cached_property
    def rails(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(nic.rail for server in self.servers for nic in server.nics))

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """`server/index`, servers in order: the device index used by every array."""
        return tuple(f"{s.name}/{i}" for s in self.servers for i in range(len(s.devices)))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        return tuple(device for server in self.servers for device in server.devices)

    @cached_property
    def server_of_device(self) -> NDArray[np.int64]:
        """int64[D]"""
        return np.array(
            [s for s, server in enumerate(self.servers) for _ in server.devices], dtype=np.int64
        )

    @cached_property
    def nic_rates(self) -> NDArray[np.float64]:
        """float64[S, R] payload bits per second, 0 where a server has no NIC on that rail."""
        rates = np.zeros((len(self.servers), len(self.rails)))
        for s, server in enumerate(self.servers):
            for nic in server.nics:
                rates[s, self.rails.index(nic.rail)] = nic.rate_bits_per_second
        return rates

    @cached_property
    def memory_bytes(self) -> NDArray[np.int64]:
        """int64[D]"""
        return np.array([device.memory_bytes for device in self.devices], dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def restricted_to_rails(self, rails: tuple[str, ...]) -> Cluster:
        """The same servers with only these rails' NICs."""
        servers = tuple(
            s.model_copy(update={"nics": tuple(n for n in s.nics if n.rail in rails)})
            for s in self.servers
        )
        return Cluster(
            servers=servers,
            setup_latency_seconds=self.setup_latency_seconds,
            intra_server_bits_per_second=self.intra_server_bits_per_second,
        )


def widest_rates(cluster: Cluster) -> NDArray[np.float64]:
    """float64[S, S, R]: what each server pair could have on each rail with nobody else there."""
    nics = cluster.nic_rates
    rates: NDArray[np.float64] = np.minimum(nics[:, None, :], nics[None, :, :])
    rates[np.arange(len(nics)), np.arange(len(nics))] = 0.0
    return rates


def even_rates(cluster: Cluster) -> NDArray[np.float64]:
    """float64[S, S, R]: each NIC split evenly over the other servers on its rail."""
    nics = cluster.nic_rates
    others = np.maximum((nics > 0).sum(axis=0) - 1, 1)
    rates: NDArray[np.float64] = widest_rates(cluster) / others
    return rates
