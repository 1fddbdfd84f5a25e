"""The agent's own configuration: one YAML or JSON file per server, by provisioning or a lab."""

from __future__ import annotations

from typing import Literal

from agent.contract.frozen import Frozen
from agent.contract.numbers import TcpPort


class AgentConfig(Frozen):
    """Paths are absolute. heartbeat: how long a silent controller is tolerated by the link.

    controller_url      https://host:port that the agent dials
    openvswitch_run_dir where ovs-vswitchd puts NAME.mgmt sockets
    datapath            auto: netdev where the kernel has no openvswitch module
    protected           interfaces that may never be touched, the management NIC among them
    metrics_socket      where metrics are asked for; none: metrics.sock in state_dir
    metrics_tcp_port    a port of the loopback for the same; none: none
    """

    server: str
    controller_url: str
    certificate_file: str
    key_file: str
    authority_file: str
    state_dir: str
    ovsdb_remote: str = "unix:/var/run/openvswitch/db.sock"
    openvswitch_run_dir: str = "/var/run/openvswitch"
    datapath: Literal["auto", "system", "netdev"] = "auto"
    protected: tuple[str, ...] = ()
    metrics_socket: str | None = None
    metrics_tcp_port: TcpPort | None = None
