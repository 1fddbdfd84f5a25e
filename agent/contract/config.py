"""The agent's own configuration: one YAML or JSON file per server, by provisioning or a lab."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placewire.agent.contract.numbers import TcpPort
from placewire.frozen import Frozen


class AgentConfig(Frozen):
    """Paths are absolute."""

    server: str = Field(description="this server's name in the plan, and in its certificate")
    controller_url: str = Field(
        description="`https://host:port` that the agent dials; the controller's `--listen`"
    )
    certificate_file: str = Field(
        description="this server's certificate and the authority's behind it, PEM"
    )
    key_file: str = Field(
        description="its private key; where it is the same file as `certificate_file`, the agent "
        "renews both by itself"
    )
    authority_file: str = Field(description="the certificate of the controller's authority, PEM")
    state_dir: str = Field(
        description="the lease, what was there before, the audit log; the agent's alone"
    )
    ovsdb_remote: str = Field(
        "unix:/var/run/openvswitch/db.sock", description="where ovsdb-server answers"
    )
    openvswitch_run_dir: str = Field(
        "/var/run/openvswitch", description="where ovs-vswitchd puts `NAME.mgmt` sockets"
    )
    datapath: Literal["auto", "system", "netdev"] = Field(
        "auto",
        description="of the bridges; `auto`: `netdev` where the kernel has no openvswitch module",
    )
    protected: tuple[str, ...] = Field(
        (), description="interfaces that may never be touched, the management NIC among them"
    )
    metrics_socket: str | None = Field(
        None, description="where metrics are asked for; none: `metrics.sock` in `state_dir`"
    )
    metrics_tcp_port: TcpPort | None = Field(
        None, description="a port of the loopback for the same; none: no port"
    )
