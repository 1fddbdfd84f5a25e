"""How many SSH connections Ansible begins at once, and that none of them stays."""

from __future__ import annotations

import getpass
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ansible_runner
import pytest

from placewire.controller.provision.playbook import Playbooks, end_connections
from placewire.controller.provision.proxies import is_behind_a_proxy
from tests.controller.launch.sshd import make_keys, running_sshd
from tests.controller.provision.test_provision import event, written
from tests.free_port import free_port

DIRECT = {"ansible_ssh_common_args": "-o ProxyJump=none -o ProxyCommand=none"}


@pytest.mark.parametrize(
    ("variables", "behind"),
    [
        (DIRECT, False),
        ({"ansible_ssh_common_args": "-o BatchMode=yes -o ProxyJump=bastion"}, True),
        ({"ansible_ssh_common_args": "-J bastion"}, True),
        ({"ansible_ssh_extra_args": "-o 'ProxyCommand=nc %h %p'"}, True),
        (DIRECT | {"ansible_port": 2222, "ansible_user": "admin", "ansible_host": "h"}, False),
        (DIRECT | {"ansible_host": "{{ somewhere }}"}, True),
        ({"ansible_ssh_common_args": "-o 'ProxyJump"}, True),
        ({"ansible_connection": "local"}, False),
    ],
)
def test_who_is_reached_through_another_is_found(variables: dict[str, Any], behind: bool) -> None:
    assert is_behind_a_proxy("127.0.0.1", variables) is behind


@pytest.mark.parametrize(
    ("servers", "jumps", "at_once"), [(64, False, 50), (20, False, 20), (64, True, 8), (3, True, 3)]
)
async def test_no_more_connections_begin_than_a_jump_host_lets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: int, jumps: bool, at_once: int
) -> None:
    """Only the last server is behind one."""
    asked: dict[str, Any] = {}

    def run(**words: Any) -> Any:
        asked.update(words)
        for name in names:
            words["event_handler"](event("runner_on_ok", name, res={}))
        return SimpleNamespace(rc=0)

    monkeypatch.setattr(ansible_runner, "run", run)
    names = [f"s{k}" for k in range(servers)]
    hosts: dict[str, dict[str, Any]] = {name: {} for name in names}
    if jumps:
        hosts[names[-1]] = {"ansible_ssh_common_args": "-J bastion"}
    file = written(tmp_path / "own.yaml", {"all": {"hosts": hosts, "vars": DIRECT}})
    await Playbooks([file], check=True).run("agent.yaml", names, {}, lambda told: None)
    assert asked["forks"] == at_once
    # One that a jump host drops all the same is tried again; none begins anew at each task.
    assert int(asked["envvars"]["ANSIBLE_SSH_RETRIES"]) > 1
    for option in ("ControlPersist=30m", "ServerAliveInterval=30"):
        assert option in asked["envvars"]["ANSIBLE_SSH_ARGS"]


def test_connections_end_with_the_playbook(tmp_path: Path) -> None:
    keys, port, sockets = make_keys(tmp_path / "keys"), free_port(), tmp_path / "ssh"
    sockets.mkdir()
    keys.know("127.0.0.1", port)
    with running_sshd(keys, "127.0.0.1", port):
        holds = subprocess.Popen([
            "ssh", "-F", "none", "-M", "-N", "-S", str(sockets / "one"), "-i", str(keys.user),
            "-o", f"UserKnownHostsFile={keys.known_hosts}", "-o", "BatchMode=yes",
            "-p", str(port), f"{getpass.getuser()}@127.0.0.1",
        ])  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while not (sockets / "one").exists():
                assert holds.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            end_connections(sockets)
            holds.wait(60)
        finally:
            holds.kill()
            holds.wait()
