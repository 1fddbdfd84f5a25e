"""The facts that `agent doctor` gathers on a server; its findings follow from these alone."""

from __future__ import annotations

from typing import Literal

from placewire.agent.contract.capabilities import TrafficControl
from placewire.agent.contract.state import LeaseState, NicFacts, ObservedState
from placewire.frozen import Frozen

# Drivers of interfaces without a cable. veth is not listed: it is a NIC in namespaces and labs.
_NO_NICS = ("bridge", "dummy", "ifb", "openvswitch", "tun", "wireguard")


class SocketFacts(Frozen):
    """writable: whether `Facts.agent_user` may write it; None: not known."""

    path: str
    there: bool
    writable: bool | None
    owner: str = ""


class SwitchFacts(Frozen):
    """version: None where Open vSwitch is not installed. unreadable: why it could not be read.
    hardware_offload: other_config:hw-offload. tun: whether /dev/net/tun exists, which the userspace
    datapath needs for its interfaces. send_buffer_bytes: net.core.wmem_default, None: not shown."""

    version: str | None
    unreadable: str | None
    sockets: tuple[SocketFacts, ...]
    datapath: Literal["system", "netdev"]
    hardware_offload: bool = False
    tun: bool = True
    send_buffer_bytes: int | None = None


class OtherFacts(Frozen):
    """Programs that may own NICs, routes or filters.

    services: process names of the services in checks_others.SERVICES that run in this network
    namespace. managed: (service, NICs that it manages); a service that did not say is left out.
    networkd_keeps_foreign: ManageForeignRoutes=no and ManageForeignRoutingPolicyRules=no are set.
    dropping: nftables' base chains at input or output that drop what no rule accepts.
    naming: (nftables chain, names of interfaces that its rules have, with `*` at the end as nft has
    it).
    named_tables: those of /etc/iproute2/rt_tables. sysctls: (name, value).
    """

    services: tuple[str, ...] = ()
    managed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    networkd_keeps_foreign: bool = False
    ufw_enabled: bool = False
    dropping: tuple[str, ...] = ()
    naming: tuple[tuple[str, tuple[str, ...]], ...] = ()
    named_tables: tuple[tuple[int, str], ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()


class OwnFacts(Frozen):
    """state_unreadable: why the state on disk could not be read, or None. taken_over: NICs in its
    ledger. owed: what it owes, one sentence for each NIC. agent_running: whether a daemon holds the
    state directory. unreadable_files: those that the configuration names and the agent's user
    cannot read. way_to_controller: from which IPv4 addresses packets leave for the controller,
    none where its way is by IPv6; controller_interfaces: by which interfaces."""

    state_dir: str
    lease: LeaseState | None
    state_unreadable: str | None
    taken_over: tuple[str, ...] = ()
    owed: tuple[str, ...] = ()
    free_bytes: int
    agent_running: bool
    unreadable_files: tuple[str, ...] = ()
    controller_url: str = ""
    way_to_controller: tuple[str, ...] = ()
    controller_interfaces: tuple[str, ...] = ()
    clock_synchronised: bool | None = None


class Facts(Frozen):
    """agent_user: the user that the agent runs as. observed: what the agent reads back; only the
    NICs where Open vSwitch cannot be read."""

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
        """The NICs that a plan could name: neither protected nor the way to the controller."""
        ways = set(self.own.way_to_controller)
        return tuple(
            nic
            for nic in self.observed.nics
            if nic.name not in self.protected
            and nic.name not in self.own.controller_interfaces
            and nic.driver not in _NO_NICS
            and not ways & {address.split("/")[0] for address in nic.addresses}
        )
