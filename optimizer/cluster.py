"""The cluster as the optimizer sees it: servers, their devices, NICs and links.

All rates are payload bits per second: framing is already subtracted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from placewire.frozen import Frozen
from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.device_names import device_name
from placewire.optimizer.names import runs_on

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# A larger value is certainly a mistake, and sums and products of such values would overflow.
_MOST_BITS_PER_SECOND = 1e18
_MOST_SECONDS = 1e6
_MOST_BYTES = 2**62


def _name(text: str) -> str:
    # A device is written `server/index`, so with a slash in a name two devices could look alike.
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name; accepted: letters, digits, '_', '.' and '-'")
    return text


Name = Annotated[str, AfterValidator(_name)]
Rate = Annotated[float, Field(strict=True, gt=0, le=_MOST_BITS_PER_SECOND)]


class MessageTime(NamedTuple):
    """For how long a message keeps each of its two devices from computing, and each byte of it."""

    seconds: float
    seconds_per_byte: float


# Until it is measured. Ranks on processors took 90 to 190 us and 2 ns with gloo; for GPUs, which
# compute while their hosts send, it is a guess.
ASSUMED_MESSAGE_TIME: Mapping[str, MessageTime] = {
    "cpu": MessageTime(100e-6, 2e-9),
    "cuda": MessageTime(20e-6, 0.0),
}


def assumed_message_time(device_types: Iterable[str]) -> MessageTime:
    """Returns the time of a cluster of these devices: as on processors where one of them is one."""
    return max(ASSUMED_MESSAGE_TIME[runs_on(one)] for one in device_types)


class Device(Frozen):
    type: Annotated[str, Field(min_length=1)]
    memory_bytes: Annotated[int, Field(strict=True, gt=0, le=_MOST_BYTES)]

    @property
    def runs_on(self) -> Literal["cpu", "cuda"]:
        return runs_on(self.type)


Background = Annotated[float, Field(strict=True, ge=0, le=_MOST_BITS_PER_SECOND)]


class Nic(Frozen):
    """background_bits_per_second: what other traffic wants to transmit on this NIC all the time,
    and as much again to receive; it takes less where it must share. At or above the NIC's rate it
    is a greedy neighbour. window_bytes: how much of messages to one receiver is handed over here at
    most, which a more urgent one does not overtake where the most urgent goes first (`chunks.py`);
    of a pair of NICs the smaller one counts. At 0 the prediction lets it overtake everything, while
    ranks hand over what follows from the rate. low_water_bytes: how little is left of the most
    urgent message that this NIC sends when half a window of the next one, to another receiver, is
    handed over and begins to leave; a quarter of window_bytes at most. At 0 the prediction lets
    none begin before the more urgent one ends, while ranks go by what follows from the rate."""

    rail: Name
    rate_bits_per_second: Rate
    background_bits_per_second: Background = 0.0
    # Left out where it is none, so that a cluster has the file and the digest that it always had.
    window_bytes: Annotated[
        int, Field(strict=True, ge=0, le=_MOST_BYTES, exclude_if=lambda size: not size)
    ] = 0
    low_water_bytes: Annotated[
        int, Field(strict=True, ge=0, le=_MOST_BYTES, exclude_if=lambda size: not size)
    ] = 0

    @model_validator(mode="after")
    def _low_water_is_low(self) -> Self:
        if 4 * self.low_water_bytes > self.window_bytes:
            raise ValueError(
                f"low_water_bytes is {self.low_water_bytes}, more than a quarter of window_bytes, "
                f"{self.window_bytes}: lower it, or leave it out"
            )
        return self


class Link(Frozen):
    """A path from one device (`server/index`) to another that uses no NIC. A transfer takes
    setup_latency_seconds plus its bits at this rate, and waits only for others on the same link."""

    source: str
    destination: str
    setup_latency_seconds: Annotated[float, Field(strict=True, ge=0, le=_MOST_SECONDS)]
    rate_bits_per_second: Rate


class Server(Frozen):
    name: Name
    devices: tuple[Device, ...]
    nics: tuple[Nic, ...]

    @model_validator(mode="after")
    def _one_nic_on_a_rail(self) -> Self:
        if len({nic.rail for nic in self.nics}) != len(self.nics):
            raise ValueError(f"{self.name} has two NICs on one rail")
        return self


class Uplink(Frozen):
    """A pod's link to the core on one rail. The job may have this rate out of the pod, and the same
    rate into it."""

    rail: Name
    rate_bits_per_second: Rate


class Pod(Frozen):
    """Servers on switches of their own. What they exchange with servers of other pods travels over
    the uplinks of both pods; a rail without an uplink ends within the pod."""

    name: Name
    servers: Annotated[tuple[Name, ...], Field(min_length=1)]
    uplinks: tuple[Uplink, ...]


class Cluster(Frozen):
    """servers are in plan order, and every array over servers has that order.

    setup_latency_seconds is p0 of the thesis (3.5). message_seconds: for how long each of the two
    devices of a message can run nothing else because of it, however small it is (the overhead `o`
    of LogP, Culler et al. 1993, section 3); message_seconds_per_byte: and for each of its bytes,
    which a processor copies. intra_server_bits_per_second is the rate
    between two devices of one server. links are for clusters whose pairs of devices differ in
    transfer cost (Moirai); a pair with a link uses neither NICs nor the intra-server path. pods
    (thesis, 3.4): each server is in one; none where one switch of each rail joins all servers.
    """

    version: Literal[1] = 1
    servers: tuple[Server, ...]
    setup_latency_seconds: Annotated[float, Field(strict=True, ge=0, le=_MOST_SECONDS)]
    message_seconds: Annotated[float, Field(strict=True, ge=0, le=_MOST_SECONDS)] = 0.0
    message_seconds_per_byte: Annotated[float, Field(strict=True, ge=0, le=1.0)] = 0.0
    intra_server_bits_per_second: Rate
    links: tuple[Link, ...] = ()
    # Left out where there are none: a cluster without pods has the file and the digest that it
    # always had.
    pods: Annotated[tuple[Pod, ...], Field(exclude_if=lambda pods: not pods)] = ()

    @model_validator(mode="after")
    def _names_are_unique_and_links_join_devices(self) -> Self:
        names = [server.name for server in self.servers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"servers: two of them are called {twice[0]!r}; rename one")
        if not self.devices:
            raise ValueError("servers: the cluster has no device; give a server one")
        known, joined = set(self.device_names), set[tuple[str, str]]()
        for k, link in enumerate(self.links):
            for end in (link.source, link.destination):
                if end not in known:
                    raise ValueError(f"links.{k}: the cluster has no device {end!r}")
            if link.source == link.destination or (link.source, link.destination) in joined:
                raise ValueError(
                    f"links.{k}: it joins a device to itself, or a pair that has a link already"
                )
            joined.add((link.source, link.destination))
        return self

    @model_validator(mode="after")
    def _each_server_is_in_one_pod(self) -> Self:
        if not self.pods:
            return self
        names = [pod.name for pod in self.pods]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"pods: two of them are called {twice[0]!r}; rename one")
        pod_of: dict[str, int] = {}
        for p, pod in enumerate(self.pods):
            rails = [uplink.rail for uplink in pod.uplinks]
            if len(set(rails)) != len(rails):
                raise ValueError(f"pods.{p}.uplinks: two of them are of one rail; leave one")
            for name in pod.servers:
                if name in pod_of:
                    raise ValueError(f"pods.{p}: server {name!r} is in a pod already; leave it out")
                pod_of[name] = p
        servers = {server.name for server in self.servers}
        if unknown := sorted(pod_of.keys() - servers):
            raise ValueError(f"pods: the cluster has no server {unknown[0]!r}")
        if missing := sorted(servers - pod_of.keys()):
            raise ValueError(f"pods: server {missing[0]!r} is in none; add it to one")
        return self

    @cached_property
    def rails(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(nic.rail for server in self.servers for nic in server.nics))

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """`server/index`, server by server: every array over devices has this order."""
        return tuple(device_name(s.name, i) for s in self.servers for i in range(len(s.devices)))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        return tuple(device for server in self.servers for device in server.devices)

    @cached_property
    def server_of_device(self) -> IntArray:
        """int64[D]"""
        return np.array(
            [s for s, server in enumerate(self.servers) for _ in server.devices], dtype=np.int64
        )

    @cached_property
    def nic_rates(self) -> FloatArray:
        """float64[S, R] payload bits per second, 0 where a server has no NIC on that rail."""
        return self._by_nic("rate_bits_per_second")

    @cached_property
    def background(self) -> FloatArray:
        """float64[S, R] payload bits per second of other traffic on each NIC, each direction."""
        return self._by_nic("background_bits_per_second")

    @cached_property
    def window_bytes(self) -> FloatArray:
        """float64[S, R] for which a more urgent message waits, 0 where there is no NIC."""
        return self._by_nic("window_bytes")

    @cached_property
    def low_water_bytes(self) -> FloatArray:
        """float64[S, R]: how little is left of each NIC's most urgent message when the next one
        begins; 0 where there is no NIC."""
        return self._by_nic("low_water_bytes")

    def _by_nic(self, field: str) -> FloatArray:
        table = np.zeros((len(self.servers), len(self.rails)))
        for s, server in enumerate(self.servers):
            for nic in server.nics:
                table[s, self.rails.index(nic.rail)] = getattr(nic, field)
        return table

    @cached_property
    def uplink_rates(self) -> FloatArray:
        """float64[P, R] payload bits per second of each pod, each direction; P is 0 where there are
        no pods."""
        table = np.zeros((len(self.pods), len(self.rails)))
        for p, pod in enumerate(self.pods):
            for uplink in pod.uplinks:
                if uplink.rail in self.rails:
                    table[p, self.rails.index(uplink.rail)] = uplink.rate_bits_per_second
        return table

    @cached_property
    def pod_of_server(self) -> IntArray:
        """int64[S]: the pod of each server; 0 for all where there are no pods."""
        pod = {name: p for p, pod in enumerate(self.pods) for name in pod.servers}
        return np.array([pod.get(server.name, 0) for server in self.servers], dtype=np.int64)

    @cached_property
    def link_of(self) -> Mapping[tuple[int, int], Link]:
        """The link of each (source, destination) device index."""
        index = {name: d for d, name in enumerate(self.device_names)}
        return {(index[k.source], index[k.destination]): k for k in self.links}

    @cached_property
    def memory_bytes(self) -> IntArray:
        """int64[D]"""
        return np.array([device.memory_bytes for device in self.devices], dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
