"""Writes a lab's shape as input for `ip -batch` and `tc -batch`, a batch per namespace. Pure."""

from __future__ import annotations

from placewire.controller.lab.shape import MANAGEMENT_INTERFACE, LabNic, LabServer, LabShape
from placewire.optimizer.cluster_plan.payload import ETHERNET_BYTES

# The burst of a slow line must hold a full frame and a little more, or the line drops the frame; of
# others it is 1 ms of the rate, since a real line does not catch up at once. Queues of 20 to 200 ms
# carried the same in both directions at once; a short queue keeps round trips short.
_BURST_BEYOND_A_FRAME_BYTES = 4_586
_BURST_SECONDS = 0.001
_QUEUE_SECONDS = 0.05
# Packets with a DSCP of 16 or more overtake others in a line's queue, as in switches that trust it.
# (mask of the type of service, of which one bit is set)
_PRECEDENCE_MASKS = (0x80, 0x40)
# Rates of classes that only put packets in order: the bucket above them is what limits.
_FAR_ABOVE = 10
_BRIDGE = "type bridge forward_delay 0 mcast_snooping 0"


def controller_batch(shape: LabShape) -> list[str]:
    """Returns ip commands for the management network; its bridge has the controller's address."""
    lines = ["link set lo up", f"link add mgmt {_BRIDGE}"]
    for number, server in enumerate(shape.servers, start=1):
        lines += [
            f"link add srv{number} type veth peer name {MANAGEMENT_INTERFACE} "
            f"netns {server.namespace}",
            f"link set srv{number} master mgmt up",
        ]
    return [*lines, f"address add {shape.controller_address} dev mgmt", "link set mgmt up"]


def rail_batch(shape: LabShape, rail: str) -> list[str]:
    """Returns ip commands for the rail's bridge, for one of each pod with a line to it, and for a
    line to each NIC."""
    lines = ["link set lo up", f"link add rail {_BRIDGE}", "link set rail up"]
    for pod in shape.pods:
        k, mtu = pod.index, f"mtu {_mtu_bytes(shape, rail)}"
        lines += [
            f"link add pod{k} {_BRIDGE}",
            f"link add core{k} {mtu} type veth peer name in{k} {mtu}",
            f"link set core{k} master pod{k} up",
            f"link set in{k} master rail up",
            f"link set pod{k} up",
        ]
    bridge = {name: f"pod{pod.index}" for pod in shape.pods for name in pod.servers}
    for server, nic in _on_rail(shape, rail):
        k, mtu = nic.index, f"mtu {nic.mtu_bytes}"
        lines += [
            f"link add port{k} {mtu} type veth peer name {nic.name} {mtu} netns {server.namespace}",
            f"link add up{k} {mtu} type veth peer name down{k} {mtu}",
            f"link add line{k} {_BRIDGE}",
            f"link set port{k} master line{k} up",
            f"link set up{k} master line{k} up",
            f"link set down{k} master {bridge.get(server.name, 'rail')} up",
            f"link set line{k} up",
        ]
    return lines


def rail_limits(shape: LabShape, rail: str) -> list[str]:
    """Returns tc commands that make each NIC and each uplink send and receive at its rate, and no
    faster."""
    mtu_bytes = _mtu_bytes(shape, rail)
    limits = [
        (f"{end}{nic.index}", nic.bits_per_second, nic.mtu_bytes)
        for _, nic in _on_rail(shape, rail)
        for end in ("port", "up")
    ] + [
        (f"{end}{pod.index}", pod.bits_per_second[rail], mtu_bytes)
        for pod in shape.pods
        for end in ("core", "in")
    ]
    return [line for limit in limits for line in _limit(*limit)]


def server_batch(server: LabServer) -> list[str]:
    """Returns ip commands that give a server its addresses, on its NICs as on a real server."""
    lines = [
        "link set lo up",
        f"address add {server.management} dev {MANAGEMENT_INTERFACE}",
        f"link set {MANAGEMENT_INTERFACE} up",
    ]
    for nic in server.nics:
        lines += [f"address add {nic.address} dev {nic.name}", f"link set {nic.name} up"]
    return lines


def shaped_interfaces(shape: LabShape) -> dict[str, list[str]]:
    """Returns the interfaces, by namespace, that must not offload: limits must see real packets."""
    ends: dict[str, list[str]] = {}
    for server in shape.servers:
        for nic in server.nics:
            ends.setdefault(server.namespace, []).append(nic.name)
            ends.setdefault(shape.rail_namespace(nic.rail), []).append(f"port{nic.index}")
    return ends


def _on_rail(shape: LabShape, rail: str) -> list[tuple[LabServer, LabNic]]:
    return [(server, nic) for server in shape.servers for nic in server.nics if nic.rail == rail]


def _mtu_bytes(shape: LabShape, rail: str) -> int:
    """All NICs of a rail have the same."""
    return next(nic.mtu_bytes for _, nic in _on_rail(shape, rail))


def _limit(interface: str, bits_per_second: float, mtu_bytes: int) -> list[str]:
    """A bucket at this rate, which takes packets of a high precedence first."""
    least_bytes = mtu_bytes + ETHERNET_BYTES + _BURST_BEYOND_A_FRAME_BYTES
    burst_bytes = max(least_bytes, round(bits_per_second / 8 * _BURST_SECONDS))
    limit_bytes = burst_bytes + round(bits_per_second / 8 * _QUEUE_SECONDS)
    above = f"rate {round(bits_per_second * _FAR_ABOVE)}bit burst {burst_bytes} quantum 60000"
    device = f"dev {interface}"
    return [
        f"qdisc add {device} root handle 1: "
        f"tbf rate {round(bits_per_second)}bit burst {burst_bytes} limit {limit_bytes}",
        f"qdisc add {device} parent 1:1 handle 2: htb default 2",
        f"class add {device} parent 2: classid 2:1 htb prio 0 {above}",
        f"class add {device} parent 2: classid 2:2 htb prio 1 {above}",
        f"qdisc add {device} parent 2:1 bfifo limit {limit_bytes}",
        f"qdisc add {device} parent 2:2 bfifo limit {limit_bytes}",
        *(
            f"filter add {device} parent 2: protocol ip prio 1 "
            f"u32 match u8 {mask:#x} {mask:#x} at 1 flowid 2:1"
            for mask in _PRECEDENCE_MASKS
        ),
    ]
