"""The types of plan.yaml's cluster section, with the description of each field.

Rates here are the NICs' line rates; `conversion` turns them into payload rates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from placewire.frozen import Frozen
from placewire.optimizer.cluster_plan import values
from placewire.optimizer.cluster_plan.payload import MTU_BYTES

# The rails that carry the job; None: all rails of the cluster.
ChosenRails = Annotated[tuple[values.Text, ...], Field(min_length=1)] | None


class PlanDevice(Frozen):
    type: values.DeviceType = Field(
        description="names a hardware and software profile: `cpu`, or `cpu:` and a name for "
        "another kind of processor; any other name is a kind of CUDA device. Each type is measured "
        "on a server that has it; for a replay, the graph file must have times for it"
    )
    memory_bytes: values.Memory = Field(
        alias="memory",
        description="what a rank's tensors may use: parameters, optimizer state, activations, "
        "messages; the rank's program needs about 350 MiB more on a CPU",
    )


class PlanNic(Frozen):
    name: values.InterfaceName = Field(
        description="the kernel's name of the NIC; its bridge is called `pw-` and this name, "
        "shortened where that has more than 15 characters"
    )
    rail: values.RailName = Field(
        description="the switch plane that the NIC is on; a server has one NIC on a rail"
    )
    address: values.InterfaceAddress = Field(
        description="the server's own on that rail; a rail is one subnet, and no two overlap"
    )
    rate_bits_per_second: values.Rate = Field(alias="rate", description="the NIC's line rate")
    background_bits_per_second: values.Background = Field(
        alias="background",
        default=0.0,
        description="what others send through this NIC, and as much again receive, all the time; "
        "the placement counts on what they leave, and at least on `network.floor`",
    )
    mtu_bytes: values.Mtu = Field(
        alias="mtu",
        default=MTU_BYTES,
        description="the largest frame on this rail, without the Ethernet header; the same for all "
        "NICs of a rail; the NIC itself must have this MTU, or a larger one",
    )
    gateway: values.Address | None = Field(
        None,
        description="a router on that rail, for traffic from this address only, and no server of "
        "the plan; none: there is no router",
    )
    take_over: values.Flag = Field(
        False,
        description="`true` lets Placewire move the NIC's own address to the bridge; the address "
        "is recorded and put back; `false` refuses a NIC that carries an address",
    )

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Interface(self.address).network

    @property
    def ip(self) -> str:
        return str(ipaddress.IPv4Interface(self.address).ip)


class PlanServer(Frozen):
    name: values.ServerName = Field(description="its agent's certificate is issued for this name")
    management: values.Address = Field(
        description="where ranks meet, and sshd listens; never on a rail, and never changed"
    )
    devices: Annotated[tuple[PlanDevice, ...], Field(min_length=1)] = Field(
        description="the devices that compute; `server/0` is the first"
    )
    nics: Annotated[tuple[PlanNic, ...], Field(min_length=1)] = Field(
        description="the NICs that may carry the job"
    )


class PlanPod(Frozen):
    name: values.ServerName = Field(description="for messages and reports")
    servers: Annotated[tuple[values.Text, ...], Field(min_length=1)] = Field(
        description="their names; each server of the plan is in exactly one pod"
    )
    uplink: values.UplinkRates = Field(
        description="the line rate between this pod's switch and the core, out of the pod and as "
        "much again into it, on every rail; or a mapping of each rail to its own. Placewire does "
        "not shape it: state what the job may have of it"
    )

    def uplink_of(self, rail: str) -> float:
        """Line rate in bits per second. The plan's checks have seen to it that there is one."""
        return self.uplink[rail] if isinstance(self.uplink, Mapping) else self.uplink


class PlanCluster(Frozen):
    """The servers and their network. `optimizer solve --cluster plan.yaml` takes it, too."""

    setup_latency_seconds: values.Latency = Field(
        alias="setup_latency",
        description="how long a message takes before its first byte travels (p0 of the thesis, "
        "3.5); `measured`: as `controller apply` measured it on this cluster",
    )
    intra_server_bits_per_second: values.Rate = Field(
        alias="intra_server_bandwidth", description="the rate between two devices of one server"
    )
    message_seconds: values.MessageTime | None = Field(
        None,
        alias="message_time",
        description="for how long a message, however small, keeps each of its two devices from "
        "computing; default: as calibration measured it on this cluster, else 100us where devices "
        "are processors and 20us where all are GPUs",
    )
    message_seconds_per_mib: values.MessageTime | None = Field(
        None,
        alias="message_time_per_mib",
        description="and for how long each MiB of it does; default: as measured, else 2.1ms where "
        "devices are processors and 0s where all are GPUs",
    )
    servers: Annotated[
        tuple[PlanServer, ...], Field(min_length=1, max_length=values.MOST_SERVERS)
    ] = Field(description="each with its devices and NICs")
    pods: Annotated[tuple[PlanPod, ...], Field(min_length=2)] | None = Field(
        None,
        description="servers grouped under switches of their own, which the core joins by uplinks; "
        "none: each rail is one switch that joins all servers",
    )

    @property
    def rails(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(nic.rail for server in self.servers for nic in server.nics))
