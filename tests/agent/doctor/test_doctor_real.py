"""`agent doctor` on a server in namespaces, with problems planted on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.store import COPY_FILE, STATE_FILE
from tests.agent import keeping
from tests.agent.agent_process import agent_command
from tests.agent.controller_double import write_certificates
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state

pytestmark = pytest.mark.network

NFTABLES = (
    "add table inet guard; "
    "add chain inet guard arriving { type filter hook input priority 0; policy drop; }; "
    'add chain inet guard closed; add rule inet guard closed iifname "nic0" tcp dport 22 drop; '
    'add rule inet guard closed iifname "mgmt" accept'
)


def examined(server: ServerUnderTest) -> dict[str, Any]:
    done = agent_command(server, "doctor", "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode, done.stderr
    return document


def places(document: dict[str, Any], severity: str) -> set[tuple[str, str]]:
    found = document["findings"]
    return {(one["where"], one["what"]) for one in found if one["severity"] == severity}


@pytest.mark.slow
def test_what_is_planted_is_found_and_nothing_is_changed(
    server: ServerUnderTest, tmp_path: Path
) -> None:
    write_certificates(server.directory)
    clean = examined(server)
    assert places(clean, "error") == set()
    # These concern the machine that runs this test, not the server.
    assert {where for where, _ in places(clean, "warning")} <= {"clock", "net.core.wmem_default"}

    server.sh("tc qdisc add dev nic0 root tbf rate 10mbit burst 10k latency 50ms")
    server.sh("ip link add br9 type bridge && ip link set nic1 master br9")
    server.sh("ip rule add priority 18001 from 10.7.0.1 lookup main")
    server.sh("ip -6 rule add priority 90 iif nic0 lookup 61; ip rule add iif mgmt lookup 61")
    server.sh("ip route add 10.99.0.0/24 dev nic0 table 8003")
    server.sh("sysctl -qw net.ipv4.conf.all.arp_ignore=8")
    server.vsctl("add-br pw-other -- set Bridge pw-other datapath_type=netdev")
    server.sh(f"nft '{NFTABLES}'")
    shutil.copy("/bin/sleep", tmp_path / "NetworkManager")
    theirs = server.popen(str(tmp_path / "NetworkManager"), "600")
    name = Path(f"/proc/{theirs.pid}/comm")
    wait_for(lambda: name.read_text().strip() == "NetworkManager", "the program to run")
    before = server.snapshot()
    document = examined(server)
    assert server.snapshot() == before
    assert document["exit_code"] == 1
    warnings = places(document, "warning")
    for where, what in (
        ("NIC nic0", "has a tbf queueing discipline"),
        ("rules 18001", "is not ours"),
        ("routes table 8003 10.99.0.0/24", "is not ours"),
        ("net.ipv4.conf.all.arp_ignore", "is 8"),
        ("bridges pw-other", "is not ours"),
        ("nftables inet guard arriving", "drops"),
        ("nftables inet guard closed", "has rules for nic0 and none for pw-nic0"),
        ("NIC nic0", "is named by the rule `priority 90 from all iif nic0 table 61`"),
        ("NetworkManager", "runs"),
    ):
        assert any(w == where and t.startswith(what) for w, t in warnings), (where, warnings)
    assert ("NIC nic1", "is already a port of br9") in places(document, "note")

    (server.directory / "agent.key").unlink()
    server.processes[0].terminate()  # ovsdb-server
    server.processes[0].wait(60)
    document = examined(server)
    assert document["exit_code"] == 2
    errors = {where for where, _ in places(document, "error")}
    assert str(server.directory / "agent.key") in errors
    assert errors & {"Open vSwitch", f"{server.directory}/db.sock"}


@pytest.mark.slow
def test_what_an_earlier_agent_left_is_named_with_what_removes_it(server: ServerUnderTest) -> None:
    write_certificates(server.directory)
    bare = server.snapshot()
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    before = server.snapshot()
    ((agent, what),) = places(examined(server), "error")
    assert agent == "agent" and "generation 1 is staged, and no agent runs" in what
    for name in (STATE_FILE, COPY_FILE):
        (server.directory / "state" / name).unlink()
    ((where, what),) = places(examined(server), "error")
    assert "bridges pw-nic0" in where and "no state on this server's disk knows them" in what
    assert server.snapshot() == before
    assert server.inside(keeping.restore_from_marks, server.config).succeeded
    assert not places(examined(server), "error")
    assert server.snapshot() == bare


def test_the_table_fits_a_hundred_columns(server: ServerUnderTest) -> None:
    done = agent_command(server, "doctor")
    assert done.returncode == 2, "it has no certificates"
    # The table may fold the path.
    assert "nic0" in done.stdout and "controller authority issue" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_help_is_quick_to_import() -> None:
    code = "import sys, placewire.agent.main\n"
    code += "sys.exit('rich' in sys.modules or 'pyroute2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
