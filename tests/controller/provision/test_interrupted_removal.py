"""Tests that `provision --remove`, interrupted at any task, goes on the next time with all that it
had yet to do. Runs the role's own tasks on this machine, in a folder that stands for /etc and /var;
programs are replaced by scripts that note how they were called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from placewire.controller.provision.playbook import PLAYBOOKS

pytestmark = pytest.mark.slow

FORMER_BYTES, OURS_BYTES = 212992, 8388608
ADDED = {"folders": [], "packages": ["openvswitch-switch"], "send_buffer_bytes": FORMER_BYTES}
NOTED = 'echo "$(basename "$0") $*" >> {calls}\n'
# What systemd's module asks of a unit, beside what it has it do.
SYSTEMCTL = (
    "[ $1 != try-restart ] || [ -e {interrupted} ] || {{ touch {interrupted}; exit 1; }}\n"
    "[ $1 != show ] || printf 'LoadState=loaded\\nActiveState=active\\nUnitFileState=enabled\\n'"
)
SYSCTL = "[ $1 != -n ] || cat {live}; case $2 in *=*) echo ${{2#*=}} > {live};; esac"


class Server:
    """A server's folders and programs, below `folder`."""

    def __init__(self, folder: Path, *, dpkg: str = "openvswitch-switch") -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.live, self.dpkg = folder / "live", folder / "dpkg"
        self.interrupted = folder / "interrupted"
        self.calls.touch()
        self.live.write_text(f"{OURS_BYTES}\n")
        self.dpkg.write_text(f"{dpkg} installed\n")
        text = (PLAYBOOKS / "roles/settings/vars/main.yaml").read_text()
        text = text.replace("/etc/", f"{folder}/etc/").replace("/var/", f"{folder}/var/")
        self.variables = folder / "variables.yaml"
        # With the folder of settings, where the record is.
        self.variables.write_text(f"{text}placewire_added: {json.dumps(ADDED)}\n")
        for name in yaml.safe_load(text)["placewire_drop_ins"]:
            self._write(Path(name) / "placewire.conf")
        for name in (
            "systemd/networkd.conf.d/placewire.conf", "sysctl.d/60-placewire.conf",
            "NetworkManager/conf.d/placewire-bridges.conf", "systemd/network/00-placewire.network",
            "placewire/installed.json",
        ):  # fmt: skip
            self._write(folder / "etc" / name)
        self.program("sysctl", SYSCTL)
        self.program("systemctl", SYSTEMCTL)
        self.program("dpkg-query", "cat {dpkg}")
        self.program("ovs-vsctl", "exit 0")

    def _write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("# ours\n")

    def program(self, name: str, text: str) -> None:
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        given = {key: getattr(self, key) for key in ("calls", "live", "dpkg", "interrupted")}
        file.write_text("#!/bin/sh\n" + (NOTED + text).format(**given) + "\n")
        file.chmod(0o755)

    def removes(self, *task_files: str) -> tuple[bool, list[str]]:
        """Runs these files of the role's tasks. What `does` returns."""
        return self.does(*(
            {"ansible.builtin.include_role": {"name": "removal", "tasks_from": one}}
            for one in task_files
        ))  # fmt: skip

    def does(self, *tasks: object) -> tuple[bool, list[str]]:
        """(whether they came to their end, the calls of programs meanwhile)"""
        play = {
            "hosts": "s1", "connection": "local", "gather_facts": False, "roles": ["settings"],
            "environment": {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
            "vars": {"ansible_python_interpreter": sys.executable},
            "tasks": [*tasks],
        }  # fmt: skip
        (self.folder / "play.yaml").write_text(yaml.safe_dump([play]))
        self.calls.write_text("")
        done = subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), "-i", "s1,",
             "-e", f"@{self.variables}", "play.yaml"],
            cwd=self.folder, capture_output=True, text=True, timeout=600,
            env={**os.environ, "ANSIBLE_ROLES_PATH": str(PLAYBOOKS / "roles"),
                 "ANSIBLE_HOME": str(self.folder), "ANSIBLE_PIPELINING": "True"},
        )  # fmt: skip
        print(done.stdout, done.stderr)
        return done.returncode == 0, self.calls.read_text().splitlines()


def test_settings_are_given_back_though_their_files_were_gone_already(tmp_path: Path) -> None:
    """Two removals are interrupted between the files' end and what goes by them."""
    server = Server(tmp_path)
    server.program("ovs-vsctl", "echo somebodys-bridge")  # So that Open vSwitch stays.
    server.program("sysctl", f"[ $1 = -n ] || exit 1\n{SYSCTL}")
    assert not server.removes("settings")[0]
    assert not (tmp_path / "etc/sysctl.d/60-placewire.conf").exists()
    server.program("sysctl", SYSCTL)
    assert not server.removes("settings")[0], "ended by systemctl"
    assert int(server.live.read_text()) == FORMER_BYTES
    whole, calls = server.removes("settings", "packages")
    assert whole
    for due in (
        "systemctl try-restart systemd-networkd.service",
        "systemctl try-reload-or-restart NetworkManager.service",
        "systemctl restart openvswitch-switch",
    ):
        assert due in calls or f"{due}.service" in calls, calls


def test_a_send_buffer_that_somebody_else_has_set_stays(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.interrupted.touch()
    server.live.write_text("16777216\n")
    assert server.removes("settings")[0]
    assert server.live.read_text() == "16777216\n"


def with_folder_of_its_package(server: Server) -> Path:
    """What the package leaves, on a server whose settings were given back before."""
    left = server.folder / "var/lib/openvswitch"
    left.mkdir(parents=True)
    more = {
        "placewire_added": {**ADDED, "package_folders": [str(left)]},
        "placewire_restart_openvswitch": False, "placewire_had": [],
    }  # fmt: skip
    with server.variables.open("a") as file:
        file.write(yaml.safe_dump(more))
    return left


def test_what_a_purge_left_goes_though_the_package_was_gone_already(tmp_path: Path) -> None:
    server = Server(tmp_path)
    left = with_folder_of_its_package(server)
    # It is interrupted once apt-get has purged the package.
    server.program("apt-get", "case $1 in --simulate) ;; *) : > {dpkg}; exit 1;; esac")
    assert not server.removes("packages")[0]
    assert left.exists() and not server.dpkg.read_text()
    assert server.removes("packages")[0]
    assert not left.exists()


def test_a_package_that_was_removed_with_its_settings_kept_keeps_its_folder(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.dpkg.write_text("openvswitch-switch config-files\n")
    left = with_folder_of_its_package(server)
    assert server.removes("packages")[0]
    assert left.exists()


@pytest.mark.parametrize("theirs", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_what_somebody_put_beside_the_settings_stays(tmp_path: Path, theirs: bool) -> None:
    server = Server(tmp_path)
    settings = tmp_path / "etc/placewire"
    (settings / "agent.json").touch()
    if theirs:
        (settings / "known_hosts").touch()
    tasks = yaml.safe_load((PLAYBOOKS / "roles/removal/tasks/main.yaml").read_text())
    last = [task["name"] for task in tasks].index("Remove users and groups") + 1
    assert server.does(*tasks[last:])[0]
    assert settings.exists() is theirs
    assert not theirs or [one.name for one in settings.iterdir()] == ["known_hosts"]
