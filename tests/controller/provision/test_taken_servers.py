"""Whose server it is, and whether a lease runs there, is found before anything is changed. Nobody
takes the server of another controller unasked, or one in the middle of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment

from placewire.agent.contract.state import LeaseState
from placewire.agent.reconcile.lease import Kept
from placewire.agent.store import COPY_FILE, STATE_FILE, DiskStore
from placewire.controller.agents.authority import Authority
from placewire.controller.provision.inventory import agent_config
from placewire.controller.provision.playbook import PLAYBOOKS, host_variables
from placewire.controller.provision.provisioning import Site, install, remove
from tests.controller.plans import plan
from tests.controller.provision.test_provision import (
    URLS,
    ServersHere,
    Silent,
    command,
    looked,
    tasks,
    written,
)
from tests.free_port import free_port

OTHER, LEASE = (
    "Require that its agent obeys no other controller",
    "Require that no lease runs there",
)
BEFORE = ("look", "before")
TEMPLATE = "https://{{ 1 + 1 }}.example:7440"


def obeying(folder: Path, authority: Authority | None, url: str = URLS["s1"]) -> None:
    """Writes the configuration of a server's agent that obeys this authority's controller."""
    file = folder / "authority.crt"
    config = agent_config("s1", URLS["s1"]) | {"authority_file": str(file), "controller_url": url}
    (folder / "agent.json").write_text(json.dumps(config))
    if authority is not None:
        file.write_bytes(authority.certificate_file.read_bytes())


def lease(phase: str, left_seconds: float | None = None, **more: Any) -> LeaseState:
    expires = None if left_seconds is None else time.time() + left_seconds
    words = {"phase": phase, "generation": 3, "plan_name": "theirs", "expires_unix": expires}
    return LeaseState.model_validate(words | more)


def test_whom_an_agent_obeys_is_found(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path / "other")
    obeying(tmp_path, authority)
    assert looked(tmp_path)["obeys"] == {
        "url": URLS["s1"], "authority_sha256": authority.sha256,
    }  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda file: None,
        lambda file: file.write_text("no certificate"),
        lambda file: file.write_text("-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n"),
        os.mkfifo,
        Path.mkdir,
    ],
)
def test_an_authority_that_is_none_is_nobody_s(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """Root waits for no pipe that the agent's user put there."""
    obeying(tmp_path, None)
    make(tmp_path / "authority.crt")
    assert looked(tmp_path)["obeys"]["authority_sha256"] == ""


def test_a_server_without_an_agent_obeys_nobody_and_has_no_lease(tmp_path: Path) -> None:
    found = looked(tmp_path)
    assert found["obeys"] == {"url": "", "authority_sha256": ""}
    assert found["lease"] == {"phase": "idle"}


@pytest.mark.parametrize("lost", [(), (STATE_FILE,)])
def test_the_lease_on_disk_is_found(tmp_path: Path, lost: tuple[str, ...]) -> None:
    DiskStore(tmp_path).save(Kept(lease=lease("staged", 36_000)))
    for name in lost:
        (tmp_path / name).write_text("")
    found = looked(tmp_path)["lease"]
    assert 0 < found.pop("left_seconds") <= 36_000
    assert found == {"phase": "staged", "generation": 3, "plan_name": "theirs"}


def test_a_state_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    for name in (STATE_FILE, COPY_FILE):
        os.mkfifo(tmp_path / name)
    assert looked(tmp_path)["lease"] == {"phase": "unknown"}


def fails(name: str, **known: Any) -> bool:
    (task,) = (task for role, task in tasks() if role in BEFORE and task["name"] == name)
    jinja = Environment()
    jinja.filters["bool"] = bool
    return bool(jinja.compile_expression(task["when"])(**known))


@pytest.mark.parametrize(
    ("of", "own", "takes_over", "refused"),
    [
        ("ab", "cd", False, True),
        ("ab", "cd", True, False),
        ("cd", "cd", False, False),
        ("", "cd", False, False),  # Nobody has enrolled it.
        ("ab", "", False, False),  # Whoever runs Ansible alone may not say whose it is to be.
    ],
)
def test_another_controller_s_server_is_refused_unless_it_is_to_be_taken(
    of: str, own: str, takes_over: bool, refused: bool
) -> None:
    known = {
        "placewire_found": {"obeys": {"url": "https://h:7440", "authority_sha256": of}},
        "placewire_authority_sha256": own, "placewire_take_over": takes_over,
    }  # fmt: skip
    assert fails(OTHER, **known) is refused


@pytest.mark.parametrize(
    ("kept", "runs", "refused"),
    [
        (lease("idle"), True, False),
        (lease("applying"), True, True),
        (lease("applying"), False, False),  # It died in a change: new code may be what it needs.
        (lease("staged", 36_000), True, True),
        (lease("committed", 36_000), True, True),
        (lease("committed", 36_000), False, True),  # Its ranks run on.
        (lease("committed", -5), False, False),
        (lease("committed"), True, False),  # A network that is kept: docs/how-to/upgrade.md.
        (lease("restoring"), True, False),
        (lease("failed"), True, False),
    ],
)
def test_a_server_where_a_lease_runs_is_refused(
    tmp_path: Path, kept: LeaseState, runs: bool, refused: bool
) -> None:
    DiskStore(tmp_path).save(Kept(lease=kept))
    found = looked(tmp_path) | {"agent_runs": runs}
    assert fails(LEASE, placewire_found=found) is refused


def test_both_are_refused_before_anything_changes() -> None:
    (play,) = yaml.safe_load((PLAYBOOKS / "agent.yaml").read_text())
    assert play["roles"][:3] == ["settings", *BEFORE]
    names = [task["name"] for role, task in tasks() if role == "before"]
    assert names.index(LEASE) < names.index("Fetch lists of packages")


def test_nobody_removes_from_another_controller_s_server_unasked() -> None:
    first, then = yaml.safe_load((PLAYBOOKS / "remove.yaml").read_text())
    assert "look" in first["roles"] and first["any_errors_fatal"] and "removal" in then["roles"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "takes_over", "said"),
    [
        (None, False, f"which it dials at {TEMPLATE}: that controller's authority is another"),
        (lease("staged", 36_000), True, "generation 3 of plan theirs is staged under a lease"),
        (None, True, ""),
    ],
)
def test_a_refusal_names_the_other_controller_or_the_lease(
    tmp_path: Path, kept: LeaseState | None, takes_over: bool, said: str
) -> None:
    """Runs the role's own tasks on this machine, up to those that refuse. What the server's file
    says is no template."""
    obeying(tmp_path, Authority.load(tmp_path / "other"), TEMPLATE)
    if kept is not None:
        DiskStore(tmp_path).save(Kept(lease=kept))
    look = [task for role, task in tasks() if role == "look"]
    refusals = [task for role, task in tasks() if task["name"] in (OTHER, LEASE)]
    refusals.sort(key=lambda task: task["name"] == LEASE)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/look.py").symlink_to(PLAYBOOKS / "roles/look/files/look.py")
    here = {
        "placewire_home": f"{tmp_path}/home", "placewire_state": str(tmp_path),
        "placewire_record": f"{tmp_path}/installed.json", "placewire_take_over": takes_over,
        "placewire_authority_sha256": "ab",
    }  # fmt: skip
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False, "vars": here,
        "vars_files": [str(PLAYBOOKS / "roles/settings/vars/main.yaml")],
        "tasks": [*look[:2], *refusals],
    }  # fmt: skip
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,",
         "-e", json.dumps(here), written(tmp_path / "play.yaml", [play])],
        capture_output=True, text=True, timeout=600,
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path),
             "ANSIBLE_PYTHON_INTERPRETER": sys.executable},
    )  # fmt: skip
    assert (done.returncode == 0) is (not said), done.stdout + done.stderr
    assert said in done.stdout


class Told(ServersHere):
    """Keeps what each playbook is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, without=[])
        self.told: dict[str, Mapping[str, Any]] = {}

    async def run(self, playbook: str, servers: Any, variables: Any, on_progress: Any) -> None:
        self.told[playbook] = variables
        await super().run(playbook, servers, variables, on_progress)


@pytest.mark.parametrize("takes_over", [False, True])
async def test_the_playbook_is_told_whose_the_servers_are_to_be(
    tmp_path: Path, takes_over: bool
) -> None:
    site = Site(
        plan(), ["s1"], Authority.load(tmp_path / "ca"), ("127.0.0.1", free_port()),
        ("127.0.0.1", free_port()), "127.0.0.1", Silent(), takes_over=takes_over,
    )  # fmt: skip
    playbooks = Told(tmp_path)
    await install(site, playbooks, check=True)
    await remove(site, playbooks, check=True)
    for playbook in ("agent.yaml", "remove.yaml"):
        told = playbooks.told[playbook]
        assert told["placewire_authority_sha256"] == site.authority.sha256
        assert told.get("placewire_take_over", False) is takes_over


def test_the_inventory_of_a_plan_says_whose_the_servers_are_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For whoever runs Ansible alone. Later runs with the file take over nothing."""
    file = tmp_path / "inventory.yaml"
    words = ("--controller", "10.9.0.254", "--write-inventory", str(file), "--take-over")
    with redirect_stdout(StringIO()) as said:
        assert command(tmp_path, capsys, *words)[0] == 0
    own = Authority.load(tmp_path / "state/ca").sha256
    for told in host_variables([file]).values():
        assert told["placewire_authority_sha256"] == own and "placewire_take_over" not in told
    assert said.getvalue().endswith("playbooks/agent.yaml -e placewire_take_over=true\n")
