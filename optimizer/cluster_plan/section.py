"""The cluster of plan.yaml as frozen types, one field at a time.

Rates here are the NICs' own (line) rates; only `conversion` turns them into payload rates.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from optimizer.cluster_plan.payload import MTU_BYTES
from optimizer.cluster_plan.values import (
    Address,
    Background,
    DeviceType,
    Flag,
    InterfaceAddress,
    InterfaceName,
    Latency,
    Memory,
    Mtu,
    RailName,
    Rate,
    ServerName,
    Text,
)

# Which rails carry the job: all of the cluster's where it is None.
ChosenRails = Annotated[tuple[Text, ...], Field(min_length=1)] | None


class FrozenSection(BaseModel):
    """Base of plan.yaml's mappings: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PlanDevice(FrozenSection):
    type: DeviceType
    memory_bytes: Memory = Field(alias="memory")


class PlanNic(FrozenSection):
    """address is the server's on this rail. take_over lets that address move to our bridge.
    background: what others send through this NIC, and as much again receive. mtu: of its frames,
    without the Ethernet header; the NIC itself has it, or a larger one."""

    name: InterfaceName
    rail: RailName
    address: InterfaceAddress
    rate_bits_per_second: Rate = Field(alias="rate")
    background_bits_per_second: Background = Field(alias="background", default=0.0)
    mtu_bytes: Mtu = Field(alias="mtu", default=MTU_BYTES)
    gateway: Address | None = None
    take_over: Flag = False

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Interface(self.address).network

    @property
    def ip(self) -> str:
        return str(ipaddress.IPv4Interface(self.address).ip)


class PlanServer(FrozenSection):
    name: ServerName
    management: Address
    devices: Annotated[tuple[PlanDevice, ...], Field(min_length=1)]
    nics: Annotated[tuple[PlanNic, ...], Field(min_length=1)]


class PlanCluster(FrozenSection):
    """setup_latency: None where it is what `controller apply` measured on this cluster."""

    setup_latency_seconds: Latency = Field(alias="setup_latency")
    intra_server_bits_per_second: Rate = Field(alias="intra_server_bandwidth")
    servers: Annotated[tuple[PlanServer, ...], Field(min_length=1)]

    @property
    def rails(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(nic.rail for server in self.servers for nic in server.nics))
