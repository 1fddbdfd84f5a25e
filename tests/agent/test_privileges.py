"""The agent runs with the privileges that its unit gives it, and needs all of them.

The unit itself is read: its capabilities, and the mode of Open vSwitch's sockets from the drop-in
that the playbook installs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.measurement import Transfer
from placewire.agent.contract.messages import Destroy, ReadBack, StartServers, StopServers
from placewire.agent.contract.messages import Stage as StageRequest
from tests.agent.agent_process import config_file, readable_python
from tests.agent.controller_double import ControllerDouble, write_certificates
from tests.agent.keeping import reaches
from tests.agent.server_under_test import ServerUnderTest, server_under_test, wait_for
from tests.agent.states import desired_state
from tests.paths import ROOT

# Unused ids for the agent's user, and for the group that may write the sockets.
USER, SWITCH_GROUP = 64_123, 64_124
CAP_NET_ADMIN = 12


def settings(name: str) -> dict[str, list[str]]:
    """The settings of a unit file in deploy/: key -> values in order."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "deploy" / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


UNIT = settings("placewire-agent.service")
DROP_IN = settings("openvswitch-group.conf")


def test_the_unit_gives_one_capability_and_one_group() -> None:
    assert UNIT["User"] == ["placewire"] and UNIT["SupplementaryGroups"] == ["openvswitch"]
    assert UNIT["AmbientCapabilities"] == UNIT["CapabilityBoundingSet"] == ["CAP_NET_ADMIN"]
    assert UNIT["NoNewPrivileges"] == ["yes"]
    # The agent alone gets SIGTERM; its tools are killed after its end, and never before it.
    assert UNIT["KillMode"] == ["mixed"] and "SendSIGKILL" not in UNIT
    # With these settings the agent's work would fail, in ways that no test here can show; the last
    # would hide GPUs. Without /dev/net/tun it could not remove a tap that an ovs-vswitchd left.
    hidden = {"ProtectKernelTunables", "PrivateUsers", "PrivateNetwork", "PrivateDevices"}
    assert not hidden & set(UNIT)
    assert UNIT["DevicePolicy"] == ["closed"]
    assert UNIT["DeviceAllow"] == ["char-nvidia* rw", "/dev/net/tun rw"]
    assert DROP_IN == {"Group": ["openvswitch"], "UMask": ["0007"]}
    # The playbook's roles make this user and this group, and install both files.
    roles = ROOT / "playbooks" / "roles"
    agent = (roles / "agent" / "tasks" / "main.yaml").read_text()
    for word in ("name: placewire", "groups: openvswitch"):
        assert word in agent
    assert "openvswitch-group.conf" in (roles / "open_vswitch" / "tasks" / "main.yaml").read_text()


def test_the_unit_reads_as_systemd_would(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "placewire-agent.service").read_text()
    (program,) = UNIT["ExecStart"]
    file = tmp_path / "placewire-agent.service"
    file.write_text(text.replace(program.split()[0], sys.executable))
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("systemd-analyze is not installed")
    ours = [line for line in done.stderr.splitlines() if "placewire-agent.service" in line]
    assert ours == []


class Unprivileged:
    """Starts agents in the server's namespace as the unit would, without what a test takes away."""

    def __init__(self, server: ServerUnderTest) -> None:
        self.server = server
        self.log = server.directory / "agent.log"
        write_certificates(server.directory)
        server.directory.chmod(0o755)
        os.chown(server.directory / "agent.key", USER, USER)
        (server.directory / "agent.key").chmod(0o400)
        state = Path(server.config.state_dir)
        state.mkdir(mode=0o750)
        # Neither id has a name here, so root that becomes the folder's owner takes its group, too.
        os.chown(state, USER, SWITCH_GROUP)

    def restore_as_root(self) -> subprocess.CompletedProcess[str]:
        python, path = readable_python()
        return subprocess.run(
            ["ip", "netns", "exec", self.server.namespace, "env", f"PYTHONPATH={path}",
             "PYTHONDONTWRITEBYTECODE=1", python, "-m", "placewire.agent.main", "restore",
             "--config", config_file(self.server)],
            capture_output=True, text=True, timeout=60, cwd=ROOT,
        )  # fmt: skip

    def start(
        self,
        *,
        capabilities: str = ",".join(UNIT["AmbientCapabilities"]),
        group: int = SWITCH_GROUP,
    ) -> subprocess.Popen[bytes]:
        names = [f"+{name.removeprefix('CAP_').lower()}" for name in capabilities.split() if name]
        held = ",".join(["-all", *names])
        python, path = readable_python()
        sink = self.log.open("ab")
        return self.server.popen(
            "setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={group}",
            f"--inh-caps={held}", f"--ambient-caps={held}", f"--bounding-set={held}",
            "--no-new-privs", "env", f"PYTHONPATH={path}", "PYTHONDONTWRITEBYTECODE=1",
            python, "-m", "placewire.agent.main", "run", "--config", config_file(self.server),
            cwd=ROOT, stdout=sink, stderr=sink,
        )  # fmt: skip


@pytest.fixture
def unprivileged() -> Iterator[Unprivileged]:
    with server_under_test(group=SWITCH_GROUP, umask=int(DROP_IN["UMask"][0], 8)) as server:
        yield Unprivileged(server)


def stage(generation: int) -> StageRequest:
    return StageRequest(desired=desired_state(generation), lease_seconds=60)


@pytest.mark.network
@pytest.mark.slow
def test_it_applies_measures_resumes_and_restores(unprivileged: Unprivileged) -> None:
    server = unprivileged.server
    server.give_ipv6()
    before = server.snapshot()
    former = server.sh("cat /sys/class/net/nic0/address").strip()
    server.sh(f"ip neigh replace 10.7.0.1 dev nic0 lladdr {former} nud stale", peer=True)
    with ControllerDouble(server) as controller:
        agent = unprivileged.start()
        hello = controller.wait_for_agent()
        assert held(agent.pid) == [1 << CAP_NET_ADMIN] * 5
        assert hello["capabilities"]["traffic_control"]["known"], "asked in a namespace of its own"
        assert hello["capabilities"]["datapath"] == server.config.datapath

        report = controller.ask(stage(1))["result"]
        assert report["succeeded"] and len(report["changes"]) >= 30, report
        bridge = server.sh("cat /sys/class/net/pw-nic0/address").strip()
        known = "ip -o neigh show 10.7.0.1"
        wait_for(lambda: server.sh(known, peer=True).split()[4] == bridge, "the peer to be told")
        assert bridge != former or server.config.datapath == "system"
        assert server.inside(reaches, "fd07::1", peer=True), "its IPv6 address has moved, too"
        transfer = Transfer(
            source="s2", destination="s1", rail="a", source_address="10.7.0.2",
            destination_address="10.7.0.1", tcp_port=5301, promised_bits_per_second=1e6,
        )  # fmt: skip
        listening = controller.ask(StartServers(transfers=(transfer,), seconds=60))
        assert listening["result"], listening
        listening = listening["result"]
        assert len(listening["tcp_ports"]) == 1
        (iperf3,) = children(agent.pid)
        assert held(iperf3) == [0, 0, 0, 1 << CAP_NET_ADMIN, 0], "it can get none"
        controller.ask(StopServers())

        agent.send_signal(signal.SIGKILL)
        agent.wait(60)
        server.sh("ip link set pw-nic0 down; ip rule del priority 18000")
        number = len(controller.hellos)
        agent = unprivileged.start()
        controller.wait_for_agent(number + 1)
        assert wait_for(lambda: whole(controller), "what is in force is whole again")
        assert controller.ask(Destroy(plan_name="test-plan"))["result"]["succeeded"]
        assert server.snapshot() == before
        assert controller.ask(stage(2))["result"]["succeeded"]
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0

        # By hand and as root, as docs/trust.md says; then the agent goes on with the files written.
        restored = unprivileged.restore_as_root()
        assert restored.returncode == 0, restored.stderr
        assert server.snapshot() == before
        owners = {path.stat().st_uid for path in Path(server.config.state_dir).iterdir()}
        assert owners == {USER}
        number = len(controller.hellos)
        unprivileged.start()
        controller.wait_for_agent(number + 1)
        assert controller.ask(stage(3))["result"]["succeeded"]
    log = unprivileged.log.read_text()
    assert " ERROR " not in log and "ermission" not in log and "not permitted" not in log, log


def whole(controller: ControllerDouble) -> bool:
    verified = controller.ask(ReadBack(generation=1))["result"]
    return verified is not None and not verified["deviations"] and not verified["problems"]


def children(pid: int) -> list[int]:
    """The processes that this one started, and that run now."""
    found = []
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The parent is the second word after the name, which stands in parentheses.
            if int(process.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(process.parent.name))
    return found


def held(pid: int) -> list[int]:
    """The inheritable, permitted, effective, bounding and ambient capabilities."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [int(line.split()[1], 16) for line in lines if line.startswith("Cap")]


@pytest.mark.network
@pytest.mark.parametrize(
    "less", [{"capabilities": ""}, {"group": USER}], ids=["no capability", "no group"]
)
def test_with_less_nothing_is_changed(unprivileged: Unprivileged, less: dict[str, Any]) -> None:
    """Shows that the test above needs these privileges, and really takes away what it says."""
    server = unprivileged.server
    before = server.snapshot()
    with ControllerDouble(server) as controller:
        unprivileged.start(**less)
        hello = controller.wait_for_agent()
        reply = controller.ask(stage(1))
        assert not (reply["result"] or {}).get("succeeded")
        assert hello["capabilities"]["datapath"] == ("none" if "group" in less else "netdev")
    assert server.snapshot() == before
