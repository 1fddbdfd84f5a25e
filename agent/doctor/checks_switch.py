"""Finds problems with Open vSwitch, the kernel's traffic control and the speed of NICs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from placewire.agent.contract.capabilities import (
    CLASSFUL_QDISC,
    CLASSIFIER,
    SOFTWARE_HTB_BITS_PER_SECOND,
)
from placewire.agent.contract.diagnosis import Finding
from placewire.agent.doctor.facts import Facts
from placewire.agent.reconcile.refusals_switch import (
    COUNTS_ALL_RATES,
    LARGEST_32_BIT_RATE,
    REMEDY,
    WHY_NOT_OLDER,
    too_old,
    version_numbers,
)

# The userspace datapath sends all queues through one socket, which needs a buffer of this size:
# with the kernel's usual 208 KiB a slow queue fills it, and the other queues drop (measured).
SEND_BUFFER_BYTES = 8 * 1024 * 1024


def switch_findings(facts: Facts) -> Iterator[Finding]:
    switch = facts.switch
    for tool in facts.missing_tools:
        yield Finding(
            severity="error", what=f"{tool} is not installed", where="tools",
            why="the agent needs it to read and change the network",
            remedy="apt-get install openvswitch-switch iproute2 ethtool iperf3 util-linux",
        )  # fmt: skip
    if switch.version is None:
        yield Finding(
            severity="error", what="Open vSwitch is not installed", where="Open vSwitch",
            why="it provides bridges, queues and flows",
            remedy="apt-get install openvswitch-switch",
        )  # fmt: skip
        return
    if what := too_old(version_numbers(switch.version)):
        yield Finding(
            severity="error", what=what, where="Open vSwitch",
            why=f"every plan is refused: {WHY_NOT_OLDER}", remedy=REMEDY,
        )  # fmt: skip
    yield from _sockets(facts)
    if switch.unreadable is not None and all(s.there for s in switch.sockets):
        yield Finding(
            severity="error", what=f"it cannot be read: {switch.unreadable}",
            where="Open vSwitch", why="the agent changes nothing that it cannot read back",
            remedy="systemctl status openvswitch-switch",
        )  # fmt: skip
    if switch.hardware_offload:
        yield Finding(
            severity="warning", what="other_config:hw-offload is on", where="Open vSwitch",
            why="flows that the NIC forwards by itself bypass the queues",
            remedy="ovs-vsctl remove Open_vSwitch . other_config hw-offload, then restart it",
        )  # fmt: skip
    if switch.datapath == "netdev":
        yield from _userspace_datapath(facts)


def _sockets(facts: Facts) -> Iterator[Finding]:
    for socket in facts.switch.sockets:
        if not socket.there:
            yield Finding(
                severity="error", what="there is no such socket", where=socket.path,
                why="Open vSwitch does not run, or another path is configured",
                remedy="systemctl start openvswitch-switch, or correct ovsdb_remote and "
                "openvswitch_run_dir in the agent's configuration",
            )  # fmt: skip
        elif socket.writable is False:
            yield Finding(
                severity="error",
                what=f"{facts.agent_user} may not write it ({socket.owner})",
                where=socket.path, why="the agent talks to Open vSwitch through it",
                remedy="install deploy/openvswitch-group.conf for ovsdb-server and ovs-vswitchd, "
                f"restart them; usermod -aG openvswitch {facts.agent_user}",
            )  # fmt: skip


def _userspace_datapath(facts: Facts) -> Iterator[Finding]:
    yield Finding(
        severity="note", what="the userspace datapath is used", where="Open vSwitch",
        why="it carries about 1 Gbit/s, and ignores set_queue: u32 classifiers steer traffic into "
        "queues instead",
        remedy="a kernel with the openvswitch module (modprobe openvswitch), datapath: auto",
    )  # fmt: skip
    if not facts.switch.tun:
        yield Finding(
            severity="error", what="it does not exist", where="/dev/net/tun",
            why="the userspace datapath makes its bridges' interfaces with it",
            remedy="modprobe tun",
        )  # fmt: skip
    there = facts.switch.send_buffer_bytes
    if there is not None and there < SEND_BUFFER_BYTES:
        yield Finding(
            severity="warning", what=f"is {there}", where="net.core.wmem_default",
            why="the userspace datapath sends all queues through one socket of that size: a slow "
            "queue fills it, and the others lose packets",
            remedy=f"sysctl -w net.core.wmem_default={SEND_BUFFER_BYTES}, then restart "
            "openvswitch-switch",
        )  # fmt: skip


def kernel_findings(facts: Facts) -> Iterator[Finding]:
    kernel = facts.traffic_control
    where = f"kernel {facts.kernel_version}"
    if not kernel.known:
        yield Finding(
            severity="note", what="its traffic control could not be queried", where=where,
            why="the query takes a network namespace, which may not be made here",
            remedy="run this as root",
        )  # fmt: skip
    if kernel.lacks(CLASSFUL_QDISC):
        yield Finding(
            severity="error", what="has no HTB", where=where, why="every promised rate is an HTB "
            "class", remedy="modprobe sch_htb, or a kernel with CONFIG_NET_SCH_HTB",
        )  # fmt: skip
    if kernel.lacks(CLASSIFIER) and facts.switch.datapath == "netdev":
        yield Finding(
            severity="error", what="has no u32 classifier", where=where,
            why="the userspace datapath ignores set_queue: nothing would steer traffic into queues",
            remedy="modprobe cls_u32, or a kernel with CONFIG_NET_CLS_U32",
        )  # fmt: skip


def speed_findings(facts: Facts) -> Iterator[Finding]:
    version = version_numbers(facts.switch.version or "0")
    for nic in facts.candidates:
        speed = nic.speed_bits_per_second or 0
        if speed > LARGEST_32_BIT_RATE and facts.switch.version and version < COUNTS_ALL_RATES:
            yield Finding(
                severity="warning",
                what=f"is faster than Open vSwitch {facts.switch.version} can count",
                where=f"NIC {nic.name}", why="before 3.2 a rate above 34 Gbit/s wraps around: a "
                "plan that uses more of this NIC is refused",
                remedy="Open vSwitch 3.2 or newer, or plan at most 34 Gbit/s of it",
            )  # fmt: skip
        elif speed > SOFTWARE_HTB_BITS_PER_SECOND:
            able = "this NIC could offload it, but " if nic.name in facts.offloading else ""
            yield Finding(
                severity="warning", what="is faster than software HTB surely carries",
                where=f"NIC {nic.name}",
                why=f"software HTB carries 25 to 40 Gbit/s of a NIC; {able}Open vSwitch asks no "
                "NIC to offload HTB. Rates may be missed, which the measurement shows",
                remedy="plan at most 25 Gbit/s of it, or several NICs",
            )  # fmt: skip
        if nic.rdma:
            yield Finding(
                severity="note", what="can do RDMA", where=f"NIC {nic.name}",
                why="RDMA bypasses every queue: our jobs use sockets, but nothing limits what "
                "others send by RDMA", remedy="",
            )  # fmt: skip
