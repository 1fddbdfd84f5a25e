"""`controller provision` installs on a bare Debian, and removes all of the installation again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.agent.contract.entries import Bridge
from placewire.agent.contract.messages import Commit, Destroy, Stage
from placewire.agent.contract.state import ApplyReport, DesiredState, LeaseState
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from tests.controller.plans import plan_document
from tests.paths import ROOT
from tests.provision.bare_machine import (
    THIS_MACHINE,
    bare_machine,
    differences,
    fetch_packages,
    served,
    snapshot,
)

LIMIT_SECONDS = 7200.0
LINK_PORT, ENROL_PORT = 17440, 17441
PLAN = "small"


@dataclass
class Cluster:
    """One server, and a controller on the present machine."""

    machine: Any
    folder: Path
    plan_file: Path
    inventory: Path

    def run(self, command: str, *words: str, status: int = 0) -> dict[str, Any]:
        """Runs a command of the controller with --json; returns the document."""
        began = time.monotonic()
        done = subprocess.run(
            [
                sys.executable, "-m", "placewire.controller.cli", command,
                str(self.plan_file), *words, "--json", "--state-dir", str(self.folder / "state"),
                "--listen", f"127.0.0.1:{LINK_PORT}",
            ],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS,
        )  # fmt: skip
        print(f"{command} {' '.join(words)}: {time.monotonic() - began:.0f} s", flush=True)
        assert done.returncode == status, done.stdout
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def provision(self, *words: str, status: int = 0) -> dict[str, Any]:
        """Runs `controller provision`; returns what it reports of the server."""
        document = self.run(
            "provision", "--inventory", str(self.inventory), "--controller", THIS_MACHINE,
            "--enrol-at", f"127.0.0.1:{ENROL_PORT}", *words, status=status,
        )  # fmt: skip
        server: dict[str, Any] = document["servers"]["s1"]
        for line in [*server["changed"], *server["notes"]]:
            print(f"    {line}")
        return server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("provision")
    packages = folder / "packages"
    with bare_machine(LIMIT_SECONDS) as machine, served(packages) as pip_environment:
        fetch_packages(machine, packages, "setuptools", "wheel", ".[agent]")
        known_hosts = folder / "known_hosts"
        kind, key = machine.host_key.read_text().split()[:2]
        known_hosts.write_text(f"[127.0.0.1]:{machine.ssh_port} {kind} {key}\n")
        document = plan_document(1)
        (server,) = document["cluster"]["servers"]
        server["nics"] = [{**server["nics"][0], "name": "eth1", "take_over": True}]
        document["launch"] = {
            "kind": "ssh", "user": "root", "port": machine.ssh_port,
            "key": str(machine.key), "known_hosts": str(known_hosts),
        }  # fmt: skip
        plan_file, inventory = folder / "plan.yaml", folder / "inventory.yaml"
        plan_file.write_text(yaml.safe_dump(document))
        variables = {
            # The machine is reached through qemu's user network.
            "ansible_host": "127.0.0.1",
            "ansible_user": "root",
            "placewire_enrols_from": "127.0.0.1",
            "placewire_setup_environment": dict(pip_environment),
            # In emulation, the packages of ranks take longer than all the rest together.
            "placewire_job_environment": False,
        }
        inventory.write_text(yaml.safe_dump({"all": {"hosts": {"s1": variables}}}))
        yield Cluster(machine, folder, plan_file, inventory)


async def test_an_installation_from_a_bare_debian_to_a_bare_debian(cluster: Cluster) -> None:
    machine = cluster.machine
    bare = snapshot(machine)
    assert "openvswitch" not in bare["packages"] and "placewire" not in bare["users"]

    foreseen = cluster.provision("--check")
    assert any("packages" in line for line in foreseen["changed"])
    assert not (done := differences(bare, snapshot(machine))), "\n".join(done)

    first = cluster.provision("--yes")
    assert any(line.startswith("certificate:") for line in first["changed"])
    assert any("not synchronised" in note for note in first["notes"])
    said = machine.ask("journalctl --no-pager; cat /proc/*/cmdline | tr '\\0' ' '")
    assert "pw1." not in said, "a token stands in no log and no list of processes"
    assert machine.ask("stat -c '%U %a' /var/lib/placewire/agent.pem").split() == [
        "placewire",
        "600",
    ]
    assert "eth0" in machine.ask("cat /etc/placewire/agent.json"), "its management is protected"
    has_torch = "/opt/placewire/.venv/bin/python -c 'import torch' 2>&1 || true"
    assert "ModuleNotFoundError" in machine.ask(has_torch), "the agent serves without it"

    installed = snapshot(machine)
    again = cluster.provision("--yes")
    assert again["changed"] == []
    assert not (more := differences(installed, snapshot(machine))), "\n".join(more)

    found = cluster.run("doctor")["servers"]
    assert [one for one in found["s1"] if one["severity"] == "error"] == []
    status = cluster.run("status")
    assert status["servers"]["s1"]["lease"]["phase"] == "idle"

    await shaped(cluster)
    refused = cluster.provision("--remove", "--yes", status=5)
    assert "its network is shaped" in refused["failed"]["what"]
    assert "controller destroy" in refused["failed"]["remedy"] and refused["changed"] == []
    await unshaped(cluster)

    # With this policy, packages that are removed do not stop their services themselves.
    machine.ask(
        "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d"
    )
    removed = cluster.provision("--remove", "--yes")
    assert removed["changed"]
    machine.ask("rm /usr/sbin/policy-rc.d")
    assert not (left := differences(bare, snapshot(machine))), "\n".join(left)
    assert cluster.provision("--remove", "--yes")["changed"] == []


async def shaped(cluster: Cluster) -> None:
    """Has the installed agent make a bridge over the second NIC, committed without expiry."""
    desired = DesiredState(
        server="s1", plan_name=PLAN, plan_digest="0" * 64, generation=1, take_over=("eth1",),
        bridges=(Bridge(name="pw-eth1", nic="eth1", datapath="system"),),
    )  # fmt: skip
    async with its_agent(cluster) as agents:
        assert agents.hello["s1"].capabilities.datapath == "system"
        staged = await agents.ask("s1", Stage(desired=desired, lease_seconds=600), ApplyReport, 300)
        assert staged.succeeded, staged
        await agents.ask("s1", Commit(generation=1, lease_seconds=None), LeaseState, 120)


@asynccontextmanager
async def its_agent(cluster: Cluster) -> AsyncIterator[Agents]:
    authority = Authority.load(cluster.folder / "state" / "ca")
    async with Agents.listening("127.0.0.1", LINK_PORT, authority) as agents:
        await agents.wait_for(["s1"], timeout_seconds=120)
        yield agents


async def unshaped(cluster: Cluster) -> None:
    async with its_agent(cluster) as agents:
        done = await agents.ask("s1", Destroy(plan_name=PLAN), ApplyReport, 300)
        assert done.succeeded, done
