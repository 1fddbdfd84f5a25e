"""The agent's configuration: one YAML or JSON file per server, written by provisioning or a lab."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from placewire.agent.contract.numbers import TcpPort
from placewire.frozen import Frozen


def _https(url: str) -> str:
    """Raises ValueError for every other URL: without TLS, neither end would know the other, and
    whoever is on the way could have the server changed."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError(f"{url!r} is not https://HOST:PORT, and the agent dials nothing else")
    return url


class AgentConfig(Frozen):
    """Paths are absolute."""

    server: str = Field(description="this server's name in the plan, and in its certificate")
    controller_url: Annotated[str, AfterValidator(_https)] = Field(
        description="`https://host:port` that the agent dials, never `http`; the controller's "
        "`--listen`"
    )
    certificate_file: str = Field(
        description="this server's certificate, followed by the authority's, PEM"
    )
    key_file: str = Field(
        description="this server's private key, PEM; where it is the same file as "
        "`certificate_file`, the agent renews both by itself"
    )
    authority_file: str = Field(description="the certificate of the controller's authority, PEM")
    state_dir: str = Field(
        description="folder of the lease, of what the agent must put back, and of the audit log; "
        "nothing else may use it"
    )
    ovsdb_remote: str = Field(
        "unix:/var/run/openvswitch/db.sock", description="where ovsdb-server answers"
    )
    openvswitch_run_dir: str = Field(
        "/var/run/openvswitch", description="where ovs-vswitchd puts `NAME.mgmt` sockets"
    )
    datapath: Literal["auto", "system", "netdev"] = Field(
        "auto",
        description="datapath of the bridges; `auto`: `system`, or `netdev` where the kernel has "
        "no openvswitch module",
    )
    protected: tuple[str, ...] = Field(
        (), description="interfaces that the agent never touches; list the management NIC here"
    )
    metrics_socket: str | None = Field(
        None, description="Unix socket that serves metrics; none: `metrics.sock` in `state_dir`"
    )
    metrics_tcp_port: TcpPort | None = Field(
        None, description="TCP port on the loopback that serves metrics too; none: no port"
    )
