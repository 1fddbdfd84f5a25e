"""Over a real sshd on this machine: what is missing on a server, or refused by it, is said before
anything starts."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login
from tests.controller.launch.ssh_stage import ADDRESS, around, folders, launcher_of
from tests.controller.launch.sshd import Keys, make_keys
from tests.free_port import free_port

pytestmark = pytest.mark.network


def test_ready_where_code_and_model_are(login: Login) -> None:
    launcher_of(login).require_ready()
    addresses = {"s1": ADDRESS}
    SshLauncher(
        addresses, login, around(), plan="small", model="placewire.examples.models.mlp"
    ).require_ready()
    with pytest.raises(UsageError, match=r"'examples\.no_such' is not found there"):
        SshLauncher(
            addresses, login, around(), plan="small", model="examples.no_such"
        ).require_ready()
    SshLauncher(addresses, login, around(), plan="small", script="examples/ddp.py").require_ready()
    with pytest.raises(UsageError, match=r"script 'none\.py' is not found there"):
        SshLauncher(addresses, login, around(), plan="small", script="none.py").require_ready()
    for script, python, wrong in (
        ("examples/ddp.py", ["env", sys.executable], None),
        ("examples/ddp.py", ["/none/python"], "'/none/python' runs no Python there: .*No such"),
        ("none.py", ["env", sys.executable], r"script 'none\.py' is not found there by 'env "),
        ("examples/ddp.py", [sys.executable, "-I", "-S"], "has no torch there"),
        ("examples.ddp", [sys.executable, "-m"], None),
        ("examples.none", [sys.executable, "-m"], r"module 'examples\.none' is not found there"),
    ):
        launcher = SshLauncher(
            addresses, login, around(), plan="small", script=script, script_python=python
        )
        if wrong is None:
            launcher.require_ready()
            continue
        with pytest.raises(UsageError, match=wrong):
            launcher.require_ready()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"python": "/no/such/python"}, "s1: .*no/such/python"),
        ({"workdir": "/no/such/folder"}, "s1: .*no/such/folder"),
        ({"python": "/usr/bin/python3"}, "s1: .*No module named|PackageNotFoundError"),
    ],
)
def test_what_is_missing_there_is_said_before_anything_starts(
    login: Login, changes: dict[str, Any], words: str
) -> None:
    before = folders(login)
    with pytest.raises((UsageError, LaunchFailed), match=f"(?s){words}"):
        launcher_of(login, **changes).require_ready()
    assert folders(login) == before


def test_a_host_that_is_not_known_is_refused(login: Login, keys: Keys, tmp_path: Path) -> None:
    nobody = tmp_path / "known_hosts"
    nobody.touch()
    stranger = Login(port=login.port, key=keys.user, known_hosts=nobody)
    with pytest.raises(LaunchFailed, match=r"(?s)host key is not known\n.*ssh-keyscan -p \d+ 127"):
        launcher_of(stranger).require_ready()
    other = make_keys(tmp_path / "other")
    other.know(ADDRESS, login.port or 22)
    changed = Login(port=login.port, key=keys.user, known_hosts=other.known_hosts)
    with pytest.raises(LaunchFailed, match=r"(?s)somebody may intercept.*ssh-keygen -R \[127"):
        launcher_of(changed).require_ready()


@pytest.mark.skipif(os.getuid() != 0, reason="the user of this process is not root")
def test_root_is_refused_where_the_plan_names_no_user(login: Login) -> None:
    before = folders(login)
    with pytest.raises(LaunchFailed, match=r"(?s)as root.*launch\.user"):
        launcher_of(replace(login, user=None)).require_ready()
    assert folders(login) == before


def test_a_key_that_is_not_accepted_is_said(login: Login, tmp_path: Path) -> None:
    wrong = make_keys(tmp_path / "wrong")
    refused = Login(port=login.port, key=wrong.user, known_hosts=login.known_hosts)
    with pytest.raises(LaunchFailed, match=r"(?s)SSH refuses .*launch\.key"):
        launcher_of(refused).require_ready()


def test_a_server_that_does_not_answer_is_said(keys: Keys) -> None:
    nobody = Login(port=free_port(), key=keys.user, known_hosts=keys.known_hosts)
    with pytest.raises(LaunchFailed, match="SSH cannot be reached"):
        launcher_of(nobody).require_ready()
