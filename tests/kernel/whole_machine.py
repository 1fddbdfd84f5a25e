"""Makes the whole machine a server: its own network namespace, the distribution's Open vSwitch, and
the agent under its shipped systemd unit."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.agent.contract.config import AgentConfig
from tests.agent.controller_double import ControllerDouble, write_certificates
from tests.agent.datapath import PATIENCE
from tests.agent.server_under_test import CONTROLLER_ADDRESS, ServerUnderTest, join_peer

UNIT = "placewire-agent"
SHIPPED = Path("deploy") / f"{UNIT}.service"
GROUP = Path("deploy/openvswitch-group.conf")
SETTINGS = Path("/etc/placewire")
THE_MACHINE = "pwt-machine"  # names the machine's own namespace
PEER = "pwt-machine-peer"


@dataclass
class WholeMachine(ServerUnderTest):
    """directory: the folder of the sockets of the distribution's Open vSwitch."""

    @property
    def config(self) -> AgentConfig:
        return AgentConfig(
            server="s1",
            controller_url=f"https://{CONTROLLER_ADDRESS}:7443",
            certificate_file=str(SETTINGS / "agent.crt"),
            key_file=str(SETTINGS / "agent.key"),
            authority_file=str(SETTINGS / "ca.crt"),
            state_dir="/var/lib/placewire",
            protected=("mgmt", "eth0"),
        )


def whole_machine() -> WholeMachine:
    return WholeMachine(Path("/var/run/openvswitch"), THE_MACHINE, PEER)


def join(server: WholeMachine) -> None:
    """Names the machine's namespace and lays cables to a peer's, both of which a reboot removes."""
    system(f"ip netns add {server.peer}; ip netns attach {server.namespace} 1")
    join_peer(server)


def install(server: WholeMachine) -> None:
    """Installs the agent as playbooks/agent.yaml does."""
    system("getent group openvswitch || groupadd --system openvswitch")
    system(
        "id placewire 2>/dev/null || useradd --system --user-group --groups openvswitch "
        "--shell /usr/sbin/nologin --home-dir /var/lib/placewire --no-create-home placewire"
    )
    for unit in ("ovsdb-server", "ovs-vswitchd"):
        drop_in = Path(f"/etc/systemd/system/{unit}.service.d/placewire.conf")
        drop_in.parent.mkdir(exist_ok=True)
        shutil.copy(GROUP, drop_in)
    SETTINGS.mkdir(exist_ok=True)
    write_certificates(SETTINGS)
    (SETTINGS / "agent.json").write_text(server.config.model_dump_json())
    system(f"chown -R root:placewire {SETTINGS}; chmod 750 {SETTINGS}; chmod 640 {SETTINGS}/*")
    shutil.copy(SHIPPED, "/etc/systemd/system/")
    system("systemctl daemon-reload; systemctl restart openvswitch-switch")


def system(command: str, *, check: bool = True) -> str:
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60 * PATIENCE
    )
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def journal() -> str:
    return system(f"journalctl --unit {UNIT} --output cat --no-pager")


def main_pid() -> int:
    return int(system(f"systemctl show --property MainPID --value {UNIT}"))


def answer(controller: ControllerDouble, request: Any) -> Any:
    """Returns the agent's result; shows its journal where the request is refused."""
    reply = controller.ask(request)
    assert reply.get("result") is not None, f"{reply}\n{journal()}"
    return reply["result"]
