"""The plan as frozen types: what plan.yaml may say, one field at a time.

Rates here are the NICs' own (wire) rates; only compile turns them into payload rates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.plan_values import (
    Address,
    Background,
    Count,
    DeviceType,
    Flag,
    Floor,
    Fraction,
    Gap,
    InterfaceAddress,
    InterfaceName,
    Latency,
    LearningRate,
    MeasuredSeconds,
    Memory,
    Momentum,
    PlanName,
    RailName,
    Rate,
    Seed,
    ServerName,
    Text,
    Threads,
    TimeLimit,
    TimeScale,
    VariableName,
    Version,
    WeightDecay,
)
from optimizer.names import ENTITLED_FRACTION, EngineName, Sharing


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlanDevice(Frozen):
    type: DeviceType
    memory_bytes: Memory = Field(alias="memory")


class PlanNic(Frozen):
    """address is the server's on this rail. take_over lets that address move to our bridge.
    background: what others send through this NIC, and as much again receive."""

    name: InterfaceName
    rail: RailName
    address: InterfaceAddress
    rate_bits_per_second: Rate = Field(alias="rate")
    background_bits_per_second: Background = Field(alias="background", default=0.0)
    gateway: Address | None = None
    take_over: Flag = False

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Interface(self.address).network

    @property
    def ip(self) -> str:
        return str(ipaddress.IPv4Interface(self.address).ip)


class PlanServer(Frozen):
    name: ServerName
    management: Address
    devices: Annotated[tuple[PlanDevice, ...], Field(min_length=1)]
    nics: Annotated[tuple[PlanNic, ...], Field(min_length=1)]


class PlanCluster(Frozen):
    setup_latency_seconds: Latency = Field(alias="setup_latency")
    intra_server_bits_per_second: Rate = Field(alias="intra_server_bandwidth")
    servers: Annotated[tuple[PlanServer, ...], Field(min_length=1)]

    @property
    def rails(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(nic.rail for server in self.servers for nic in server.nics))


class PlanOptimizer(Frozen):
    name: Literal["adamw", "sgd"] = "adamw"
    lr: LearningRate = 1e-3
    momentum: Momentum | None = None
    weight_decay: WeightDecay | None = None

    @property
    def options(self) -> Mapping[str, float]:
        given = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {key: value for key, value in given.items() if value is not None}


class PlacedJob(Frozen):
    """Runs the captured model. python, workdir and env say how ranks start on the servers."""

    kind: Literal["placed"]
    model: Text
    batch: Count
    optimizer: PlanOptimizer = PlanOptimizer()
    steps: Count
    seed: Seed = 0
    backend: Literal["auto", "gloo"] = "auto"
    threads: Threads = 1
    python: Text | None = None
    workdir: Text | None = None
    env: Mapping[VariableName, Text] = {}


class ReplayJob(Frozen):
    """Runs a graph file's timings with real transfers; time_scale slows its operators."""

    kind: Literal["replay"]
    graph: Text
    steps: Count
    time_scale: TimeScale = 1.0
    backend: Literal["auto", "gloo"] = "auto"
    threads: Threads = 1
    python: Text | None = None
    workdir: Text | None = None
    env: Mapping[VariableName, Text] = {}


Job = Annotated[PlacedJob | ReplayJob, Field(discriminator="kind")]


class PlanSolve(Frozen):
    engine: EngineName = "auto"
    gap: Gap = 0.05
    time_limit_seconds: TimeLimit = Field(alias="time_limit", default=60.0)
    seed: Seed = 0


class PlanVerify(Frozen):
    tolerance: Fraction = 0.10
    seconds: MeasuredSeconds = 3.0


class PlanNetwork(Frozen):
    """rails: only these carry the job (all by default). floor: what the job is entitled to of each
    NIC when others want it too."""

    sharing: Literal["auto", Sharing] = "auto"
    floor: Floor = ENTITLED_FRACTION
    verify_settings: PlanVerify = Field(alias="verify", default=PlanVerify())
    on_exit: Literal["restore", "keep"] = "restore"
    rails: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None


class Plan(Frozen):
    version: Annotated[Literal[1], Version]
    name: PlanName
    cluster: PlanCluster
    job: Job
    solve: PlanSolve = PlanSolve()
    network: PlanNetwork = PlanNetwork()

    @property
    def rails(self) -> tuple[str, ...]:
        """The rails that carry the job."""
        return self.network.rails or self.cluster.rails
