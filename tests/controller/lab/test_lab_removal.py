"""`lab down` leaves nothing of a lab, wherever `lab up` ended, and touches nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.errors import AgentUnreachable, PlacewireError
from placewire.controller.lab import agent_daemons, find_lab, lab_down, lab_names, lab_up
from placewire.controller.lab import record as records
from placewire.controller.lab.processes import describe, start_ticks
from placewire.controller.lab.record import Recorder
from placewire.controller.own_lab import LAB_VARIABLE
from tests.agent.server_under_test import wait_for
from tests.controller.plans import plan, plan_document

pytestmark = [pytest.mark.network, pytest.mark.lab]

NAME = f"gone{os.getpid()}"
SYSCTL = Path("/proc/sys/net/core/wmem_default")
INTERFACES = ("port", "up", "down", "line", "srv", "mgmt", "rail", "nic", "pw-settle", "pw-nic")


def document(name: str = NAME) -> dict[str, Any]:
    """Two servers, one rail."""
    full = plan_document(2, name=name)
    for server in full["cluster"]["servers"]:
        server["nics"] = server["nics"][:1]
    return full


def marked_processes() -> list[bytes]:
    """Command lines of living processes of this lab, in whatever namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            marks = (entry / "environ").read_bytes().split(b"\0")
            if (
                f"{LAB_VARIABLE}={NAME}".encode() in marks
                and start_ticks(int(entry.name)) is not None
            ):
                found.append((entry / "cmdline").read_bytes())
        except (OSError, ValueError):
            continue
    return found


def traces() -> dict[str, Any]:
    """Returns all that a lab of this name could leave on the machine."""
    with records.exclusive():  # no other lab goes up now
        send_buffer = SYSCTL.read_text()
    links = json.loads(subprocess.check_output(["ip", "-json", "link"]))
    spaces = Path("/run/netns")
    return {
        "namespaces": sorted(p.name for p in spaces.iterdir() if NAME in p.name)
        if spaces.is_dir()
        else [],
        "links": [n for link in links if (n := link["ifname"]).rstrip("0123456789") in INTERFACES],
        "processes": marked_processes(),
        "files": NAME in lab_names(),
        "send buffer": send_buffer,
    }


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = traces()
    assert not before["files"]
    try:
        yield
        assert traces() == before
    finally:
        if NAME in lab_names():
            lab_down(NAME)


def test_up_and_down_leave_nothing() -> None:
    said: list[str] = []
    lab = lab_up(plan(document()), said.append)
    # Only daemons are compared: an agent may be running a command just then, such as
    # `ovs-vswitchd --version`.
    daemons = (b"ovsdb-server\0", b"ovs-vswitchd\0", b"\0placewire.agent.main\0run\0")
    marks = (b"\0--detach\0", b"\0placewire.agent.main\0")
    running = {line for line in marked_processes() if any(mark in line for mark in marks)}
    assert [sum(d in line for line in running) for d in daemons] == [2, 2, 2], running
    assert find_lab(NAME) == lab
    lab_down(NAME, said.append)
    assert find_lab(NAME) is None
    assert not lab.directory.exists()
    assert said[-1].startswith(f"lab {NAME}: removed 4 namespaces")


CRASHES = {
    "nothing made yet": "up._make_network",
    "namespaces and lines made": "up.start_switches",
    "a daemon started and not recorded": "record.Recorder.add_process",
    "the send buffer raised": "switches._settle",
    "agents started": "agent_daemons._await_dialling",
}
CRASH = """
import os, signal, sys
sys.path[:0] = {path!r}
from tests.controller import plans
from tests.controller.lab import test_lab_removal
from placewire.controller.lab import agent_daemons, lab_up, record, switches, up
def crash(*arguments, **named): os.kill(os.getpid(), signal.SIGKILL)
{where} = crash
lab_up(plans.plan(test_lab_removal.document({name!r})))
"""


@pytest.mark.parametrize("where", CRASHES.values(), ids=CRASHES.keys())
def test_down_after_a_kill_in_the_middle_of_up(where: str) -> None:
    script = CRASH.format(path=sys.path, where=where, name=NAME)
    done = subprocess.run([sys.executable, "-c", script], timeout=300)
    assert done.returncode == -9
    with pytest.raises(PlacewireError, match=f"half-made.*\n.*controller lab down {NAME}"):
        find_lab(NAME)
    with pytest.raises(PlacewireError, match="exists already"):
        lab_up(plan(document()))
    lab_down(NAME)


def test_down_after_a_kill_in_the_middle_of_down() -> None:
    """`lab down` was killed when only the record was left, or only the folder."""
    record = records.LabRecord(
        name=NAME,
        servers=(),
        controller_namespace=f"pw-{NAME}-controller",
        controller_address="10.9.0.254",
        namespaces=(f"pw-{NAME}-controller",),
    )
    with records.exclusive():
        Recorder(record)
    lab_down(NAME)
    with records.exclusive():
        Recorder(record)
        (records.directory_of(NAME) / "lab.json").unlink()
    lab_down(NAME)
    with pytest.raises(PlacewireError, match="there is no lab"):
        lab_down(NAME)


def test_an_agent_that_does_not_start_is_named_and_all_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_daemons.sys, "executable", "/bin/false")  # type: ignore[attr-defined]
    with pytest.raises(AgentUnreachable, match="it ended with 1") as problem:
        lab_up(plan(document()))
    assert problem.value.exit_code == 5
    assert NAME not in lab_names()


def test_a_namespace_of_that_name_is_refused_and_left_alone() -> None:
    foreign = f"pw-{NAME}-s2"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        with pytest.raises(PlacewireError, match=f"not of a lab: {foreign}"):
            lab_up(plan(document()))
        assert traces()["namespaces"] == [foreign]
        assert NAME not in lab_names()
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)


def network_of(pid: int) -> int:
    """The namespace that the process is in."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def test_processes_that_are_not_the_lab_s_are_left_alone() -> None:
    """One runs in the lab's namespace, like a shell; one has a pid that the record names."""
    lab = lab_up(plan(document()))
    said: list[str] = []
    with (
        subprocess.Popen(lab.inside_server("s1", ["sleep", "600"])) as shell,
        subprocess.Popen(["sleep", "600"]) as innocent,
    ):
        try:
            space = (Path("/run/netns") / lab.namespace("s1")).stat().st_ino
            wait_for(lambda: network_of(shell.pid) == space, "a shell inside")
            stale = describe(innocent.pid, ["sleep", "600"])
            stale = stale.model_copy(update={"start_ticks": stale.start_ticks - 1})
            file = lab.directory / "lab.json"
            processes = (*lab.record.processes, stale)
            record = lab.record.model_copy(update={"processes": processes})
            file.write_text(record.model_dump_json())
            lab_down(NAME, said.append)
            assert shell.poll() is None
            assert innocent.poll() is None
            assert any(f"left alone, but its network goes: process {shell.pid}" in s for s in said)
        finally:
            shell.kill()
            innocent.kill()


@pytest.mark.parametrize("whose", ["lab.json", "", ".", ".."])
def test_a_record_that_others_could_have_made_is_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Root enters namespaces, writes files and ends processes by it."""
    root = tmp_path / "placewire/lab"
    monkeypatch.setattr(records, "LAB_ROOT", root)
    (root / "theirs").mkdir(parents=True)
    record = records.LabRecord(
        name="theirs", servers=(), controller_namespace="x", controller_address="10.9.0.2/24",
        namespaces=(), complete=True,
    )  # fmt: skip
    (root / "theirs/lab.json").write_text(record.model_dump_json())
    assert find_lab("theirs") is not None
    theirs = {"lab.json": root / "theirs/lab.json", "": root / "theirs", ".": root}
    os.chown(theirs.get(whose, root.parent), 12345, -1)
    with pytest.raises(PlacewireError, match="other users than root can write there"):
        find_lab("theirs")
    assert find_lab("another") is None, "commands that are in no lab go on"
    with pytest.raises(PlacewireError, match="other users than root can write there"):
        lab_down("theirs", print)
    assert (root / "theirs/lab.json").exists()


def test_nobody_else_can_hold_the_lock_of_labs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "placewire/lab"
    monkeypatch.setattr(records, "LAB_ROOT", root)
    with records.exclusive():
        assert records.recorded_names() == []
        assert stat.S_IMODE((root / ".lock").stat().st_mode) == 0o600
        looked = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(looked, fcntl.LOCK_EX)  # As any user can.
    root.mkdir(parents=True)
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with records.exclusive():
        pass
    assert not root.parent.exists(), "it goes with the last lab"
    os.close(looked)
    os.close(held)
