"""What `agent doctor` looks at, as it was found. Frozen: findings follow from nothing else."""

from __future__ import annotations

from typing import Literal

from placewire.agent.contract.capabilities import TrafficControl
from placewire.agent.contract.entries import Sysctl
from placewire.agent.contract.state import LeaseState, NicFacts, ObservedState
from placewire.frozen import Frozen

# Drivers of interfaces that no cable is behind. Namespaces and labs have veth for NICs.
_NO_NICS = ("bridge", "dummy", "ifb", "openvswitch", "tun", "wireguard")


class SocketFacts(Frozen):
    """writable: for `Facts.agent_user`; None where it could not be told."""

    path: str
    there: bool
    writable: bool | None
    owner: str = ""


class SwitchFacts(Frozen):
    """version: None where it is not installed. unreadable: why it could not be read, or None.
    hardware_offload: other_config:hw-offload. tun: /dev/net/tun, which the userspace datapath needs
    for its own interfaces. send_buffer_bytes: net.core.wmem_default, None where it is not shown."""

    version: str | None
    unreadable: str | None
    sockets: tuple[SocketFacts, ...]
    datapath: Literal["system", "netdev"]
    hardware_offload: bool = False
    tun: bool = True
    send_buffer_bytes: int | None = None


class OtherFacts(Frozen):
    """Programs that may own NICs, routes or filters.

    services: of those that we know, the ones that run in this network namespace, by process name.
    managed: by service, its NICs; a service that is not in it did not say.
    networkd_keeps_foreign: ManageForeignRoutes=no and ManageForeignRoutingPolicyRules=no.
    dropping: base chains of nftables at input or output that drop what no rule accepts.
    named_tables: of /etc/iproute2/rt_tables.
    """

    services: tuple[str, ...] = ()
    managed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    networkd_keeps_foreign: bool = False
    ufw_enabled: bool = False
    dropping: tuple[str, ...] = ()
    named_tables: tuple[tuple[int, str], ...] = ()
    sysctls: tuple[Sysctl, ...] = ()


class OwnFacts(Frozen):
    """state_unreadable: why the lease on disk could not be read, or None. taken_over: NICs of which
    it holds what they were before. agent_running: a daemon holds the state directory.
    unreadable_files: of those that the configuration names."""

    state_dir: str
    lease: LeaseState | None
    state_unreadable: str | None
    taken_over: tuple[str, ...] = ()
    free_bytes: int
    agent_running: bool
    unreadable_files: tuple[str, ...] = ()
    controller_url: str = ""
    way_to_controller: tuple[str, ...] = ()
    clock_synchronised: bool | None = None


class Facts(Frozen):
    """agent_user: whom the agent runs as here. observed: what it reads back; without Open vSwitch,
    the NICs alone."""

    server: str
    agent_user: str
    missing_tools: tuple[str, ...]
    kernel_version: str
    traffic_control: TrafficControl
    offloading: tuple[str, ...]
    protected: tuple[str, ...]
    switch: SwitchFacts
    others: OtherFacts
    own: OwnFacts
    observed: ObservedState

    @property
    def candidates(self) -> tuple[NicFacts, ...]:
        """NICs that a plan could name: not protected, and not the way to the controller."""
        ways = set(self.own.way_to_controller)
        return tuple(
            nic
            for nic in self.observed.nics
            if nic.name not in self.protected
            and nic.driver not in _NO_NICS
            and not ways & {address.split("/")[0] for address in nic.addresses}
        )
