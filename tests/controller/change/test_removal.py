"""Tests that `provision --remove` leaves what others use by now. Runs the role's own tasks with
--check, which changes nothing; apt-get, dpkg-query, ovs-vsctl and getent are replaced by scripts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from placewire.controller.provision.playbook import PLAYBOOKS

ADDED = ["iperf3", "libiperf0", "openvswitch-common", "openvswitch-switch", "python3-venv"]
INSTALLED = "".join(f"{name} installed\n" for name in [*ADDED, "bash", "benchmarks", "left"])


def apt_get(needs: Mapping[str, str]) -> str:
    """A script that prints what apt-get would remove: the named packages, and what needs them."""
    cases = "".join(f"{name}) echo Remv {who} '[1]';; " for name, who in needs.items())
    return f"shift 2; for word; do echo Purg $word '[1]'; case $word in {cases}*) ;; esac; done"


def tasks(folder: Path, tasks_from: str, programs: Mapping[str, str], **added: object) -> str:
    """Runs one task file of the role; returns what Ansible prints."""
    there = folder / "bin"
    there.mkdir()
    for name, script in programs.items():
        (there / name).write_text(f"#!/bin/sh\n{script}\n")
        (there / name).chmod(0o755)
    play = {
        "hosts": "s1", "connection": "local", "gather_facts": False, "roles": ["settings"],
        "environment": {"PATH": f"{there}:{os.environ['PATH']}"},
        "vars": {
            "ansible_python_interpreter": sys.executable, "placewire_added": added,
            "placewire_had": [], "placewire_gone": [],
        },
        "tasks": [
            {"ansible.builtin.include_role": {"name": "removal", "tasks_from": tasks_from}}
        ],
    }  # fmt: skip
    (folder / "play.yaml").write_text(yaml.safe_dump([play]))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "--check", "-i", "s1,", "play.yaml"],
        cwd=folder, capture_output=True, text=True,
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(PLAYBOOKS / "roles"),
             "ANSIBLE_PIPELINING": "True"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def message(printed: str, task: str) -> str:
    """The message of a debug task; empty where the task was skipped."""
    part = printed.partition(f": {task}]")[2].partition("TASK [")[0]
    shown = part.partition('"msg": ')[2].splitlines()
    return str(json.loads(shown[0])) if shown else ""


def dpkg_query() -> str:
    return f"printf '{INSTALLED}'"


@pytest.mark.parametrize(
    ("needs", "bridges", "go", "stay"),
    [
        pytest.param({}, "", ADDED, [], marks=pytest.mark.thorough),
        ({"libiperf0": "benchmarks"}, "",
         ["iperf3", "openvswitch-common", "openvswitch-switch", "python3-venv"], ["libiperf0"]),
        ({"openvswitch-common": "openvswitch-switch"}, "echo br0",
         ["iperf3", "libiperf0", "python3-venv"], ["openvswitch-common", "openvswitch-switch"]),
        pytest.param(
            {"openvswitch-common": "openvswitch-switch"}, "echo it does not run >&2; exit 1",
            ["iperf3", "libiperf0", "python3-venv"], ["openvswitch-common", "openvswitch-switch"],
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["nobody", "a later package", "somebody's bridge", "nobody can say"],
)  # fmt: skip
def test_packages_that_others_need_stay(
    tmp_path: Path, needs: Mapping[str, str], bridges: str, go: list[str], stay: list[str]
) -> None:
    programs = {"apt-get": apt_get(needs), "dpkg-query": dpkg_query(), "ovs-vsctl": bridges}
    printed = tasks(tmp_path, "packages", programs, packages=[*ADDED, "gone-since"])
    assert message(printed, "Purged packages") == ", ".join(go)
    assert message(printed, "Tell which packages stay").partition(" stay:")[0] == ", ".join(stay)


@pytest.mark.parametrize(
    ("group", "passwd", "stays"),
    [
        ("openvswitch:x:990:placewire", "placewire:x:991:991::/:", False),
        pytest.param("openvswitch:x:990:", "", False, marks=pytest.mark.thorough),
        ("openvswitch:x:990:placewire,monitor", "", True),
        pytest.param(
            "openvswitch:x:990:", "monitor:x:992:990::/:", True, marks=pytest.mark.thorough
        ),
    ],
    ids=["ours", "empty", "a member", "somebody's own group"],
)
def test_a_group_that_others_are_in_stays(
    tmp_path: Path, group: str, passwd: str, stays: bool
) -> None:
    getent = f"case $1 in group) echo {group};; *) printf '{passwd}';; esac"
    printed = tasks(tmp_path, "users", {"getent": getent}, users=[], groups=["openvswitch"])
    part = printed.partition("Remove added groups")[2]
    assert ("skipping: [s1] => (item=openvswitch)" in part) is stays, printed
