"""Writes a first plan.yaml for `controller init` from what agents report of their servers. Pure.

Each subnet that holds NICs of at least two servers becomes a rail; whether these NICs really reach
each other is measured by the first apply. What cannot be known is written as a comment.

A plan is code, and an agent may be another's: nothing that it says can become a line or a key of
the plan. What a plan could not have is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Interface, IPv4Network
from string import ascii_lowercase
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import NicFacts
from placewire.controller.errors import UsageError
from placewire.optimizer.cluster_plan.values import Address, InterfaceAddress, InterfaceName
from placewire.optimizer.profile.devices import DEVICES
from placewire.visible import visible

# The part of a device's memory that tensors may use; program and allocator need the rest.
_TENSORS = {"gpu": 0.9, "cpu": 0.5}
_UNKNOWN_RATE = "1Gbit"
_MEBIBYTE = 1024 * 1024
_STANDARD_MTU_BYTES = 1500
_INTERFACE: TypeAdapter[str] = TypeAdapter(InterfaceName)
_ADDRESS: TypeAdapter[str] = TypeAdapter(InterfaceAddress)
_MANAGEMENT: TypeAdapter[str] = TypeAdapter(Address)


class _Rail(NamedTuple):
    name: str
    smallest_mtu_bytes: int


class _Port(NamedTuple):
    nic: NicFacts
    address: IPv4Interface


def discovered_plan(name: str, model: str, hellos: Mapping[str, Hello]) -> str:
    """Returns the text of plan.yaml. Raises UsageError where no two servers share a subnet, or a
    server does not know which of its NICs is the management NIC."""
    lost = [server for server, hello in hellos.items() if hello.management_interfaces is None]
    if lost:
        raise UsageError(
            f"{', '.join(lost)} did not know by which NIC the controller is reached: a name server "
            "was slow or away, and the plan could get the management NIC",
            remedy="run the same command again; if it stays so, repair the name servers in "
            "/etc/resolv.conf there, or give `controller_url` an address",
        )
    ports = {server: _ports(hello) for server, hello in hellos.items()}
    rails = _rails(ports)
    if not rails:
        found = ", ".join(
            f"{server} {port.nic.name} {port.address}"
            for server, some in ports.items()
            for port in some
        )
        raise UsageError(
            f"no two of {', '.join(hellos)} have NICs in one subnet, beside their management NICs: "
            f"{found or 'there is no other NIC with an IPv4 address'}",
            remedy="give the NICs of one switch addresses of one subnet, and bring them up",
        )
    servers = [
        line
        for server, hello in hellos.items()
        for line in _server(server, hello, ports[server], rails)
    ]
    return "\n".join([*_head(name), *servers, *_job(model)]) + "\n"


def _ports(hello: Hello) -> list[_Port]:
    """Returns the NICs that could carry the job, each with its first IPv4 address."""
    found = []
    for nic in hello.capabilities.nics:
        if not _is_in(_INTERFACE, nic.name):
            continue
        addresses = [IPv4Interface(a) for a in nic.addresses if _is_in(_ADDRESS, a)]
        free = nic.bridge is None and nic.root_qdisc is None
        own = nic.name in (hello.management_interfaces or ()) or hello.management in [
            str(address.ip) for address in addresses
        ]
        if addresses and free and not own and nic.name not in hello.protected:
            found.append(_Port(nic, addresses[0]))
    return found


def _is_in(kind: TypeAdapter[str], text: str) -> bool:
    """Whether a plan takes this text there."""
    try:
        kind.validate_python(text)
    except ValidationError:
        return False
    return True


def _management(hello: Hello) -> str | None:
    found = hello.management
    return found if found is not None and _is_in(_MANAGEMENT, found) else None


def _rails(ports: Mapping[str, Sequence[_Port]]) -> dict[IPv4Network, _Rail]:
    """Returns a rail for each subnet of more than one server."""
    members: dict[IPv4Network, list[tuple[str, int]]] = defaultdict(list)
    for server, some in ports.items():
        for port in some:
            members[port.address.network].append((server, port.nic.mtu_bytes))
    shared = sorted(subnet for subnet, some in members.items() if len({s for s, _ in some}) > 1)
    return {
        subnet: _Rail(_letters(number), min(mtu for _, mtu in members[subnet]))
        for number, subnet in enumerate(shared)
    }


def _letters(number: int) -> str:
    """a … z, aa, ab …"""
    word = ascii_lowercase[number % 26]
    return word if number < 26 else _letters(number // 26 - 1) + word


def _head(name: str) -> list[str]:
    return [
        "# Written by `controller init` from what the agents found. Check it, name your model:",
        "#   controller preview FILE --network-only   shows what would be changed; touches nothing",
        "#   controller apply FILE --network-only     shapes and measures, then puts all back",
        "# docs/plan.md says what else a plan can have.",
        "version: 1",
        f"name: {name}",
        "cluster:",
        "  # What a message costs beside its bytes; `measured`: the first apply measures it.",
        "  setup_latency: 50us",
        "  intra_server_bandwidth: 100Gbit   # between devices of one server",
        "  servers:",
    ]


def _server(
    name: str, hello: Hello, ports: Sequence[_Port], rails: Mapping[IPv4Network, _Rail]
) -> list[str]:
    lines = [
        f"    - name: {name}",
        f"      management: {_management(hello) or '0.0.0.0   # not known: where is its SSH?'}",
        "      devices:",
    ]
    lines += [f"        {line}" for line in _devices(hello.capabilities)]
    lines.append("      nics:")
    taken: set[str] = set()
    for port in ports:
        rail = rails.get(port.address.network)
        if rail is None or rail.name in taken:
            why = f"rail {rail.name} has one" if rail else "no other server is in its subnet"
            lines.append(f"        # {port.nic.name} {port.address} is left out: {why}")
            continue
        taken.add(rail.name)
        lines.append(f"        - {_nic(port, rail)}")
    return lines


def _devices(found: Capabilities) -> Iterator[str]:
    if found.gpus_unread:
        yield "# GPUs may be missing here. NVIDIA's driver has not answered yet."
    if found.gpu_problem:
        yield f"# GPUs may be missing here. {visible(found.gpu_problem)}"
    for device in found.devices:
        at = f" at {visible(device.place.text)}" if device.place else ""
        if device.mig:
            yield (
                f"# {visible(device.name)}{at} is left out: MIG cuts it, and a rank takes a whole "
                "GPU (nvidia-smi -mig 0 ends that)"
            )
            continue
        part = _TENSORS["cpu" if device.name == "cpu" else "gpu"]
        memory = int(device.memory_bytes * part / _MEBIBYTE)
        yield (
            f"- {{type: {device_type(device.name)}, memory: {memory}MiB}}"
            f"   # {visible(device.name)}{at}, {part:.0%} of its "
            f"{device.memory_bytes / 1024**3:.0f} GiB"
        )


def _nic(port: _Port, rail: _Rail) -> str:
    nic, speed = port.nic, port.nic.speed_bits_per_second
    rate = _UNKNOWN_RATE if speed is None else f"{speed / 1e6:.0f}Mbit"
    smallest = rail.smallest_mtu_bytes
    mtu = "" if smallest == _STANDARD_MTU_BYTES else f", mtu: {smallest}"
    doubts = {
        "its speed is not known: set the rate": speed is None,
        "it is down": not nic.up,
        "it has no cable, or nobody at its other end": nic.carrier is False,
    }
    at = [visible(nic.place.text)] if nic.place else []
    comment = "; ".join([*at, *(doubt for doubt, applies in doubts.items() if applies)])
    return (
        f"{{name: {nic.name}, rail: {rail.name}, address: {port.address}, rate: {rate}{mtu}, "
        f"take_over: true}}{f'   # {comment}' if comment else ''}"
    )


def device_type(name: str) -> str:
    """Returns the modelled device (a100 for `NVIDIA A100-SXM4-80GB`), else the name as one word."""
    word = re.sub(r"[^a-z0-9]+", "", name.lower().removeprefix("nvidia").replace("geforce", ""))
    known = [kind for kind in sorted(DEVICES, key=len, reverse=True) if word.startswith(kind)]
    return known[0] if known else word or "cpu"


def _job(model: str) -> list[str]:
    return [
        "job:",
        "  kind: placed",
        f"  model: {model}   # package.module:function that returns a training step: docs/model.md",
        "  batch: 32",
        "  optimizer: {name: adamw, lr: 1e-3}",
        "  steps: 100",
        "  threads: 1   # of each rank; on a processor, its cores divided by its server's ranks",
        "  # python, workdir, env: interpreter, folder and environment variables of ranks",
        "# launch: {kind: ssh, user: NAME}   # how ranks are started; docs/cluster.md",
        "solve: {time_limit: 60s}",
        "network:",
        "  sharing: auto",
        "  verify: {tolerance: 10%, seconds: 3}",
        "  on_exit: restore",
    ]
