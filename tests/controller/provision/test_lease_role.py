"""The role that lets Placewire be removed reads the agent's state as the agent does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from placewire.agent.contract.state import LeaseState, Ledger, TakenOver
from placewire.agent.reconcile.lease import Kept
from placewire.agent.store import COPY_FILE, STATE_FILE, DiskStore
from tests.paths import ROOT

pytestmark = pytest.mark.slow

IDLE = Kept()
COMMITTED = Kept(lease=LeaseState(phase="committed", generation=3, plan_name="plan"))
OWING = Kept(ledger=Ledger(owed=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",)),)))


def role_on(
    state_dir: Path, folder: Path, *, switch: str = "exit 0", links: object = ()
) -> subprocess.CompletedProcess[str]:
    """Runs the role on this machine, as nobody else. switch: the shell program that stands in for
    ovs-vsctl. links: what `ip -json -details link show` says."""
    programs = folder / "programs"
    programs.mkdir()
    for name, text in (("ovs-vsctl", switch), ("ip", f"echo '{json.dumps(links)}'")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    play = [
        {
            "hosts": "localhost", "connection": "local", "gather_facts": False,
            "vars": {"placewire_state": str(state_dir)},
            "roles": [str(ROOT / "playbooks" / "roles" / "lease")],
        }
    ]  # fmt: skip
    file = folder / "play.yaml"
    file.write_text(yaml.safe_dump(play))
    return subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", str(file)],
        capture_output=True, text=True, timeout=600,
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_PYTHON_INTERPRETER":
             sys.executable, "ANSIBLE_HOME": str(folder), "ANSIBLE_PIPELINING": "True",
             "PATH": f"{programs}:{os.environ['PATH']}"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "without", "said"),
    [
        (None, (), ""),
        pytest.param(IDLE, (), "", marks=pytest.mark.thorough),
        pytest.param(
            COMMITTED, (), "generation 3 of plan plan is committed", marks=pytest.mark.thorough
        ),
        (COMMITTED, (STATE_FILE,), "generation 3 of plan plan is committed"),
        (OWING, (), "NICs nic0 were away"),
    ],
)
def test_what_is_in_force_or_owed_keeps_placewire_there(
    tmp_path: Path, kept: Kept | None, without: tuple[str, ...], said: str
) -> None:
    state = tmp_path / "state"
    if kept is not None:
        DiskStore(state).save(kept)
    for name in without:
        (state / name).unlink()
    done = role_on(state, tmp_path)
    assert (done.returncode == 0) == (not said), done.stdout + done.stderr
    assert said in done.stdout


def test_a_damaged_state_is_no_idle_one(tmp_path: Path) -> None:
    DiskStore(tmp_path / "state").save(COMMITTED)
    for name in (STATE_FILE, COPY_FILE):
        path = tmp_path / "state" / name
        path.write_bytes(path.read_bytes().replace(b"committed", b"idle"))
    done = role_on(tmp_path / "state", tmp_path)
    assert done.returncode != 0 and "--from-marks" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("emptied", "said"),
    [
        pytest.param((STATE_FILE,), "NICs nic0 were away", marks=pytest.mark.thorough),
        ((STATE_FILE, COPY_FILE), "is damaged"),
    ],
)
def test_a_file_that_lost_its_content_is_no_idle_state(
    tmp_path: Path, emptied: tuple[str, ...], said: str
) -> None:
    DiskStore(tmp_path / "state").save(OWING)
    for name in emptied:
        (tmp_path / "state" / name).write_bytes(b"")
    done = role_on(tmp_path / "state", tmp_path)
    assert done.returncode != 0 and said in done.stdout, done.stdout + done.stderr


def linked(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (STATE_FILE, os.mkfifo),
        pytest.param(STATE_FILE, linked, marks=pytest.mark.thorough),
        pytest.param(COPY_FILE, os.mkfifo, marks=pytest.mark.thorough),
        (COPY_FILE, linked),
    ],
)
def test_what_the_agent_s_user_put_in_the_place_of_its_state_is_not_opened(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """Root would wait for a pipe without end."""
    DiskStore(tmp_path / "state").save(IDLE)
    (tmp_path / "state" / name).unlink()
    make(tmp_path / "state" / name)
    done = role_on(tmp_path / "state", tmp_path)
    assert done.returncode != 0 and f"{name} is no file" in done.stdout, done.stdout + done.stderr


MARKED = """test "$*" = \\
  "--timeout=10 --bare --columns=name find Bridge external_ids:placewire!=\\"\\"" && echo pw-nic0"""
LINKS = [
    {"ifname": "lo"},
    {"ifname": "pw-veth", "linkinfo": {"info_kind": "veth"}},
    {"ifname": "ovs-netdev", "linkinfo": {"info_kind": "tun"}},
]


IN_KERNEL = {"ifname": "pw-nic0", "linkinfo": {"info_kind": "openvswitch"}}
IN_USERSPACE = {"ifname": "pw-nic0", "linkinfo": {"info_kind": "tun"}}


@pytest.mark.parametrize(
    ("kept", "switch", "more"),
    [
        (None, MARKED, ()),
        pytest.param(IDLE, MARKED, (), marks=pytest.mark.thorough),
        pytest.param(None, "exit 0", (IN_KERNEL,), marks=pytest.mark.thorough),
        (IDLE, "exit 0", (IN_KERNEL,)),
        (None, "exit 1", (IN_USERSPACE,)),
        pytest.param(IDLE, "exit 1", (IN_USERSPACE,), marks=pytest.mark.thorough),
    ],
)
def test_a_bridge_of_which_the_state_says_nothing_keeps_placewire_there(
    tmp_path: Path, kept: Kept | None, switch: str, more: tuple[object, ...]
) -> None:
    if kept is not None:
        DiskStore(tmp_path / "state").save(kept)
    done = role_on(tmp_path / "state", tmp_path, switch=switch, links=[*LINKS, *more])
    assert done.returncode != 0, done.stdout + done.stderr
    assert "says nothing: pw-nic0" in done.stdout and "--from-marks" in done.stdout


@pytest.mark.parametrize(("kept", "removable"), [(None, False), (IDLE, True)])
def test_without_state_and_switch_nothing_is_known(
    tmp_path: Path, kept: Kept | None, removable: bool
) -> None:
    if kept is not None:
        DiskStore(tmp_path / "state").save(kept)
    done = role_on(tmp_path / "state", tmp_path, switch="exit 1", links=LINKS)
    assert (done.returncode == 0) == removable, done.stdout + done.stderr
    assert removable or "Open vSwitch does not answer" in done.stdout
