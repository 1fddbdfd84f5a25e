"""The plan as frozen types: what plan.yaml may say, one field at a time.

Rates here are the NICs' own (wire) rates; only compile turns them into payload rates.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from optimizer.names import EngineName, Sharing
from optimizer.quantities import (
    parse_bits_per_second,
    parse_bytes,
    parse_fraction,
    parse_seconds,
)

_NAME = re.compile(r"[a-z][a-z0-9-]*")
# A dash in front would be an option to the tools that interfaces are set with.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_INTERFACE_LENGTH = 15


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _name(limit: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not _NAME.fullmatch(text) or len(text) > limit:
            raise ValueError(
                f"{text!r} is not a name; accepted: a letter, then letters, digits and dashes, "
                f"lower case, at most {limit} in all"
            )
        return text

    return check


def _interface_name(text: str) -> str:
    """As the kernel has it: PCI positions, VLANs and dots included."""
    if not _INTERFACE.fullmatch(text) or len(text) > _INTERFACE_LENGTH:
        raise ValueError(
            f"{text!r} is not an interface's name; accepted: letters, digits, _, dashes and "
            f"single dots between them, at most {_INTERFACE_LENGTH} in all, as `ip link` shows it"
        )
    return text


def _ipv4(text: object) -> str:
    try:
        address = ipaddress.ip_address(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address, like 10.9.0.1") from None
    if address.version == 6:
        raise ValueError(f"{text} is IPv6, which is not supported; give an IPv4 address")
    return str(address)


def _ipv4_interface(text: object) -> str:
    try:
        interface = ipaddress.ip_interface(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address with its prefix, like 10.7.0.1/24") from None
    if interface.version == 6:
        raise ValueError(f"{text} is IPv6, which is not supported; give an IPv4 address")
    network = interface.network
    if network.prefixlen > 30:
        raise ValueError(
            f"{text}: a rail's subnet needs room for its servers: a prefix of at most /30"
        )
    if interface.ip in (network.network_address, network.broadcast_address):
        raise ValueError(f"{text}: {interface.ip} is the network or broadcast address of {network}")
    return str(interface)


def _positive(what: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not value > 0:
            raise ValueError(f"{what} must be more than 0")
        return value

    return check


def _between(low: float, high: float) -> Callable[[float], float]:
    def check(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"{value:g} is outside {low:g} to {high:g}")
        return value

    return check


Rate = Annotated[float, BeforeValidator(parse_bits_per_second), AfterValidator(_positive("a rate"))]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Duration = Annotated[float, BeforeValidator(parse_seconds), AfterValidator(_positive("a time"))]
Memory = Annotated[int, BeforeValidator(parse_bytes), AfterValidator(_positive("memory"))]
Fraction = Annotated[float, BeforeValidator(parse_fraction), AfterValidator(_between(0, 1))]
PositiveInteger = Annotated[int, AfterValidator(_positive("this number"))]


class PlanDevice(Frozen):
    type: str
    memory_bytes: Memory = Field(alias="memory")


class PlanNic(Frozen):
    """address is the server's on this rail. take_over lets that address move to our bridge."""

    name: Annotated[str, AfterValidator(_interface_name)]
    rail: Annotated[str, AfterValidator(_name(12))]
    address: Annotated[str, BeforeValidator(_ipv4_interface)]
    rate_bits_per_second: Rate = Field(alias="rate")
    gateway: Annotated[str, BeforeValidator(_ipv4)] | None = None
    take_over: bool = False

    @property
    def network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Interface(self.address).network

    @property
    def ip(self) -> str:
        return str(ipaddress.IPv4Interface(self.address).ip)


class PlanServer(Frozen):
    name: Annotated[str, AfterValidator(_name(20))]
    management: Annotated[str, BeforeValidator(_ipv4)]
    devices: Annotated[tuple[PlanDevice, ...], Field(min_length=1)]
    nics: Annotated[tuple[PlanNic, ...], Field(min_length=1)]


class PlanCluster(Frozen):
    setup_latency_seconds: Seconds = Field(alias="setup_latency")
    intra_server_bits_per_second: Rate = Field(alias="intra_server_bandwidth")
    servers: Annotated[tuple[PlanServer, ...], Field(min_length=1)]

    @property
    def rails(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(nic.rail for server in self.servers for nic in server.nics))


class PlanOptimizer(Frozen):
    name: Literal["adamw", "sgd"] = "adamw"
    lr: Annotated[float, AfterValidator(_positive("a learning rate"))] = 1e-3
    momentum: float | None = None
    weight_decay: float | None = None

    @property
    def options(self) -> Mapping[str, float]:
        given = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {key: value for key, value in given.items() if value is not None}


class PlacedJob(Frozen):
    """Runs the captured model. python, workdir and env say how ranks start on the servers."""

    kind: Literal["placed"]
    model: str
    batch: PositiveInteger
    optimizer: PlanOptimizer = PlanOptimizer()
    steps: PositiveInteger
    seed: int = 0
    backend: Literal["auto", "gloo"] = "auto"
    threads: PositiveInteger = 1
    python: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = {}


class ReplayJob(Frozen):
    """Runs a graph file's timings with real transfers; time_scale slows its operators."""

    kind: Literal["replay"]
    graph: str
    steps: PositiveInteger
    time_scale: Annotated[float, AfterValidator(_positive("a time scale"))] = 1.0
    backend: Literal["auto", "gloo"] = "auto"
    threads: PositiveInteger = 1
    python: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = {}


Job = Annotated[PlacedJob | ReplayJob, Field(discriminator="kind")]


class PlanSolve(Frozen):
    engine: EngineName = "auto"
    gap: Fraction = 0.05
    time_limit_seconds: Duration = Field(alias="time_limit", default=60.0)
    seed: int = 0


class PlanVerify(Frozen):
    tolerance: Fraction = 0.10
    seconds: Annotated[float, AfterValidator(_between(1, 60))] = 3.0


class PlanNetwork(Frozen):
    """rails: only these carry the job (all by default)."""

    sharing: Literal["auto", Sharing] = "auto"
    verify_settings: PlanVerify = Field(alias="verify", default=PlanVerify())
    on_exit: Literal["restore", "keep"] = "restore"
    rails: tuple[str, ...] | None = None


class Plan(Frozen):
    version: Literal[1]
    name: Annotated[str, AfterValidator(_name(24))]
    cluster: PlanCluster
    job: Job
    solve: PlanSolve = PlanSolve()
    network: PlanNetwork = PlanNetwork()

    @property
    def rails(self) -> tuple[str, ...]:
        """The rails that carry the job."""
        return self.network.rails or self.cluster.rails
