"""Provisioning as far as it needs no server: inventories, configurations, what a playbook tells,
and what is refused before anything is sent. On a real machine: tests/provision."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shlex
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import yaml
from jinja2 import Environment

from placewire.agent.connection.controller_connection import ControllerConnection
from placewire.agent.connection.enrol import EnrolmentError, enrol
from placewire.agent.connection.identity import keep, new_key, require_serving
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import LeaseState
from placewire.agent.main import load_config
from placewire.agent.main import main as agent_main
from placewire.agent.reconcile.lease import Kept
from placewire.agent.service import Service
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.agents.refused_connections import RefusedConnections
from placewire.controller.cli import main
from placewire.controller.errors import UsageError
from placewire.controller.lab.record import LAB_ROOT
from placewire.controller.provision.inventory import (
    CONFIG,
    STATE_DIR,
    agent_config,
    as_data,
    inventory,
    require_valid_configs,
)
from placewire.controller.provision.playbook import PLAYBOOKS, Playbooks, host_variables
from placewire.controller.provision.progress import (
    CERTIFICATE_TASK,
    STAGES,
    Began,
    Certificate,
    Changed,
    Failed,
    Noted,
    Outcome,
    Progress,
    outcomes,
    read_event,
)
from placewire.controller.provision.provisioning import Site, _turned_away, install, remove
from tests.controller.plans import capabilities, plan, plan_document
from tests.free_port import free_port
from tests.paths import ROOT

LEASE = LeaseState(phase="idle", generation=0)
URLS = {f"s{k}": "https://10.9.0.254:7440" for k in (1, 2, 3)}


def event(kind: str, host: str | None = "s1", **data: Any) -> dict[str, Any]:
    """Returns an event as ansible-runner gives it."""
    return {"event": kind, "event_data": {"host": host, **data}}


def written(path: Path, document: Any) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


# The inventory


def test_an_inventory_says_how_each_server_is_reached(tmp_path: Path) -> None:
    document = plan_document()
    key, known = tmp_path / "a key", tmp_path / "known hosts"
    key.touch()
    known.touch()
    document["launch"] = {
        "kind": "ssh", "user": "trainer", "port": 2222, "key": str(key), "known_hosts": str(known),
    }  # fmt: skip
    made = inventory(plan(document), ["s1", "s3"], URLS, "admin")["all"]
    assert {name: host["ansible_host"] for name, host in made["hosts"].items()} == {
        "s1": "10.9.0.1", "s3": "10.9.0.3",
    }  # fmt: skip
    variables = made["vars"]
    assert (variables["ansible_user"], variables["ansible_port"]) == ("admin", 2222)
    assert variables["ansible_ssh_private_key_file"] == str(key)
    assert f"'UserKnownHostsFile=\"{known}\"'" in variables["ansible_ssh_common_args"]


def test_nobody_logs_in_as_the_user_of_the_ranks() -> None:
    """Who has no privilege, so that nothing could be installed."""
    document = plan_document() | {"launch": {"kind": "ssh", "user": "trainer"}}
    variables = inventory(plan(document), ["s1"], URLS)["all"]["vars"]
    # Nor is there a port that the plan does not say: it would win over that of ~/.ssh/config.
    assert not {"ansible_user", "ansible_port"} & set(variables)


def test_without_launch_ssh_has_its_own_settings() -> None:
    variables = inventory(plan(), ["s1"], URLS)["all"]["vars"]
    assert not {"ansible_user", "ansible_port", "ansible_ssh_private_key_file"} & set(variables)


def test_a_configuration_is_one_that_the_agent_reads(tmp_path: Path) -> None:
    document = agent_config("s1", URLS["s1"])
    config = load_config(written(tmp_path / "agent.json", document))
    assert config.server == "s1" and config.controller_url == URLS["s1"]
    assert config.key_file == config.certificate_file, "both are renewed at once"
    assert config.state_dir == STATE_DIR


def test_the_playbooks_have_the_folders_of_the_configuration_and_the_unit() -> None:
    variables = yaml.safe_load((PLAYBOOKS / "roles/settings/vars/main.yaml").read_text())
    unit = (ROOT / "deploy/placewire-agent.service").read_text()
    assert variables["placewire_state"] == STATE_DIR
    assert f"{variables['placewire_home']}/.venv/bin/agent run" in unit
    assert f"{variables['placewire_settings']}/agent.json" in unit
    assert Path(STATE_DIR).name == re.search(r"StateDirectory=(\S+)", unit)[1]  # type: ignore[index]
    # systemd gives it to the agent's user, and removes it when the agent stops.
    made = Path("/run", re.search(r"RuntimeDirectory=(\S+)", unit)[1])  # type: ignore[index]
    assert made not in (LAB_ROOT, *LAB_ROOT.parents)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"controller_url": 7}, "controller_url"),
        ({"metrics_tcp_port": 70_000}, "metrics_tcp_port"),
        ({"colour": "red"}, "colour"),
        ({"server": "s2"}, "server is 's2'"),
    ],
)
def test_a_wrong_configuration_of_an_inventory_is_refused(change: Any, said: str) -> None:
    known = {"s1": {CONFIG: agent_config("s1", URLS["s1"]) | change}}
    with pytest.raises(UsageError, match=said) as raised:
        require_valid_configs(known, ["s1"])
    assert raised.value.where == "s1"


def test_an_inventory_of_ones_own_overrides_what_it_says_and_no_more(tmp_path: Path) -> None:
    derived = tmp_path / "plan.yaml"
    derived.write_text(as_data(inventory(plan(), ["s1", "s2"], URLS)))
    own = written(
        tmp_path / "own.yaml",
        {"all": {"vars": {"ansible_user": "admin"}, "hosts": {"s1": {"ansible_host": "h1"}}}},
    )
    known = host_variables([derived, own])
    assert (known["s1"]["ansible_host"], known["s2"]["ansible_host"]) == ("h1", "10.9.0.2")
    assert {host["ansible_user"] for host in known.values()} == {"admin"}
    require_valid_configs(known, ["s1", "s2"])


async def test_what_a_plan_says_is_no_template_for_ansible(tmp_path: Path) -> None:
    """Neither what the plan's inventory says, nor what a playbook is given."""
    mark = tmp_path / "ran"
    template = f"{{{{ lookup('ansible.builtin.pipe', 'touch {mark}') }}}}"
    url = f"https://10.9.0.254/{template}"
    derived, urls = tmp_path / "plan.yaml", dict.fromkeys(URLS, url)
    # As if a user's name got past its check.
    derived.write_text(as_data(inventory(plan(), ["s1"], urls, template)))
    own = on_this_machine(tmp_path / "home", "echo $* >> $(dirname $0)/asked; exit 1")
    variables = {"placewire_home": str(tmp_path / "home"), "placewire_authority_sha256": template}
    told: list[Progress] = []
    await Playbooks([derived, own], check=True).run("enrol.yaml", ["s1"], variables, told.append)
    asked = (tmp_path / "home/.venv/bin/asked").read_text()
    assert not mark.exists() and template in asked, "it reached the agent as it is"
    shown = subprocess.run(
        [Path(sys.executable).with_name("ansible"), "-i", derived, "s1", "--connection", "local",
         "-m", "ansible.builtin.debug",
         "-a", "msg={{ ansible_user }}/{{ placewire_agent_config.controller_url }}"],
        capture_output=True, text=True, check=True, env={**os.environ, "ANSIBLE_NOCOLOR": "True"},
    ).stdout  # fmt: skip
    assert json.dumps(f"{template}/{url}") in shown and not mark.exists()
    assert host_variables([derived])["s1"]["ansible_user"] == template


async def test_ansible_s_settings_in_the_folder_that_a_command_is_run_in_are_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name programs, and whoever writes to that folder may be another than who runs it."""
    folder, mark = tmp_path / "folder", tmp_path / "ran"
    (folder / "plugins").mkdir(parents=True)
    (folder / "ansible.cfg").write_text("[defaults]\nvars_plugins = plugins\n")
    (folder / "plugins/theirs.py").write_text(
        f"open({str(mark)!r}, 'w').close()\n"
        "from ansible.plugins.vars import BaseVarsPlugin\n"
        "class VarsModule(BaseVarsPlugin):\n"
        "    def get_vars(self, *words, **more):\n"
        "        return {}\n"
    )
    own = on_this_machine(tmp_path / "home", "exit 1").rename(folder / "own.yaml")
    monkeypatch.chdir(folder)
    (tmp_path / "plan.yaml").write_text(as_data(inventory(plan(), ["s1"], URLS)))
    known = host_variables([tmp_path / "plan.yaml", own.relative_to(folder)])
    assert known["s1"]["ansible_connection"] == "local" and not mark.exists()
    variables = {"placewire_home": str(tmp_path / "home")}
    playbooks = Playbooks([tmp_path / "plan.yaml", own], check=True)
    await playbooks.run("enrol.yaml", ["s1"], variables, lambda told: None)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["all", "ungrouped", "localhost"])
def test_a_server_s_name_that_means_something_to_ansible_is_refused(name: str) -> None:
    document = plan_document()
    document["cluster"]["servers"][0]["name"] = name
    with pytest.raises(UsageError, match=name) as raised:
        inventory(plan(document), [name, "s2"], {name: URLS["s1"], **URLS})
    assert raised.value.remedy


# What a playbook tells


@pytest.mark.parametrize(
    ("told", "read"),
    [
        (
            event("playbook_on_task_start", None, role="packages", task="x"),
            Began("packages"),
        ),
        (
            event("runner_on_ok", role="agent", task="Its unit", res={"changed": True}),
            Changed("s1", "agent", "Its unit"),
        ),
        (event("runner_on_ok", role="agent", task="Its unit", res={"changed": False}), None),
        (
            event(
                "runner_on_ok", role="clock", task="A clock", task_action="ansible.builtin.debug",
                res={"msg": "not synchronised", "changed": False},
            ),
            Noted("s1", "not synchronised"),
        ),
        (
            event("runner_on_ok", role="enrolment", task=CERTIFICATE_TASK, res={"rc": 1}),
            Certificate("s1", False),
        ),
        (
            event(
                "runner_on_failed", role="lease", task="No network that is shaped",
                res={"msg": "its network is shaped\n`controller destroy PLAN` first"},
            ),
            Failed(
                "s1", "lease: No network that is shaped", "its network is shaped",
                "`controller destroy PLAN` first",
            ),
        ),
        (event("runner_on_failed", ignore_errors=True, res={"msg": "no"}), None),
        (event("runner_on_skipped", res={}), None),
        ({"event": "verbose", "stdout": "Using /etc/ansible/ansible.cfg"}, None),
    ],
)  # fmt: skip
def test_an_event_becomes_progress(told: dict[str, Any], read: Progress | None) -> None:
    assert read_event(told) == read


def test_a_command_that_failed_says_its_last_words_and_what_to_do() -> None:
    result = {
        "msg": "non-zero return code", "rc": 1, "stdout": "setup: installing",
        "stderr": "\nERROR: no version of torch\nERROR: No matching distribution found for torch\n",
    }  # fmt: skip
    told = read_event(event("runner_on_failed", role="job_environment", task="x", res=result))
    assert isinstance(told, Failed)
    assert told.reason.endswith("No matching distribution found for torch")
    assert "placewire_setup_environment" in told.remedy


def test_of_a_loop_the_item_that_failed_is_told() -> None:
    items = [{"changed": True, "msg": ""}, {"failed": True, "msg": "no room\nmake some"}]
    result = {"msg": "One or more items failed", "results": items}
    told = read_event(event("runner_on_failed", role="before", task="x", res=result))
    assert isinstance(told, Failed) and (told.reason, told.remedy) == ("no room", "make some")


@pytest.mark.parametrize("results", [5, None, "text", {"a": 1}, [5]])
def test_what_a_module_calls_its_results_need_not_be_a_loop_s(results: Any) -> None:
    result = {"msg": "no room", "results": results}
    told = read_event(event("runner_on_failed", role="before", task="x", res=result))
    assert isinstance(told, Failed) and told.reason == "no room"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Failed to connect to the host via ssh: Host key verification failed.", "ssh-keyscan"),
        ("Failed to connect to the host via ssh: root@h: Permission denied (publickey).", "key"),
        ("ssh: connect to host h port 22: Connection refused", "management address"),
        ("Missing sudo password", "ansible_become_password"),
    ],
)
def test_who_is_not_reached_is_told_with_what_to_do(said: str, remedy: str) -> None:
    told = read_event(event("runner_on_unreachable", res={"msg": said}))
    assert isinstance(told, Failed) and remedy in told.remedy


def test_what_became_of_each_server_is_told_apart() -> None:
    found = outcomes(["s1", "s2"], [
        Began("agent"), Changed("s1", "agent", "Its unit"), Certificate("s1", True),
        Noted("s1", "late"), Noted("s1", "late"), Failed("s2", "connection", "no", "look"),
    ])  # fmt: skip
    assert found["s1"].document() == {
        "changed": ["agent: Its unit"], "notes": ["late"], "failed": None,
    }  # fmt: skip
    assert found["s2"].document()["failed"] == {
        "task": "connection",
        "what": "no",
        "remedy": "look",
    }


# The playbooks


@pytest.mark.parametrize("playbook", ["agent.yaml", "enrol.yaml", "remove.yaml"])
def test_a_playbook_is_valid(playbook: str) -> None:
    ansible = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [ansible, "--syntax-check", "-i", "localhost,", f"playbooks/{playbook}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def tasks() -> list[tuple[str, Mapping[str, Any]]]:
    """(role, task) of all roles, those in blocks too."""

    def flat(some: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        inner = [task for one in some for task in one.get("block", []) + one.get("rescue", [])]
        return [*some, *(flat(inner) if inner else [])]

    return [
        (file.parts[-3], task)
        for file in sorted(PLAYBOOKS.glob("roles/*/*s/*.yaml"))
        if file.parent.name in ("tasks", "handlers")
        for task in flat(yaml.safe_load(file.read_text()))
    ]


def test_every_role_is_a_stage_with_a_name() -> None:
    assert {role for role, _ in tasks()} <= set(STAGES)
    assert ("enrolment", CERTIFICATE_TASK) in {(role, task["name"]) for role, task in tasks()}


def test_the_look_at_a_server_finds_what_is_there(tmp_path: Path) -> None:
    """Runs on this machine: it only reads."""
    look = PLAYBOOKS / "roles/look/files/look.py"
    there, absent = tmp_path / "there", tmp_path / "absent"
    (there / "ca").mkdir(parents=True)
    (tmp_path / "record.json").write_text('{"packages": ["iperf3"]}')
    words = [absent, there, tmp_path / "record.json", there, absent]
    said = subprocess.run(
        [sys.executable, "-c", look.read_text(), *words], capture_output=True, check=True
    ).stdout
    found = json.loads(said)
    assert found["controller"] and found["record"] == {"packages": ["iperf3"]}
    assert found["folders"] == [str(there)]
    assert found["python"] == ".".join(platform.python_version_tuple()[:2])
    assert "python3" in found["packages"] and "root" in found["users"]
    assert found["send_buffer_bytes"] > 0 and abs(found["unix"] - time.time()) < 60


@pytest.mark.parametrize(
    ("version", "environment", "refused"),
    [
        ("3.10", {}, True),
        ("3.11", {}, False),
        ("3.13", {}, False),
        ("3.14", {}, True),
        ("3.10", {"PYTHON": "python3.11"}, False),
    ],
)
def test_a_server_with_another_python_is_refused_before_anything_is_added(
    version: str, environment: dict[str, str], refused: bool
) -> None:
    names = [task["name"] for role, task in tasks() if role == "before"]
    name = "Require a Python that Placewire runs on"
    assert names.index(name) < names.index("Write the record of what is added")
    (task,) = (task for _, task in tasks() if task["name"] == name)
    variables = yaml.safe_load((PLAYBOOKS / "roles/settings/vars/main.yaml").read_text())
    fails = Environment().compile_expression(task["when"])
    assert refused is fails(
        placewire_found={"python": version},
        placewire_pythons=variables["placewire_pythons"],
        placewire_setup_environment=environment,
    )


def test_provision_and_setup_know_the_versions_of_python_that_the_package_requires() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    least, beyond = map(int, re.findall(r"3\.(\d+)", required))
    known = yaml.safe_load((PLAYBOOKS / "roles/settings/vars/main.yaml").read_text())
    assert known["placewire_pythons"] == [f"3.{minor}" for minor in range(least, beyond)]
    setup = (ROOT / "deploy/setup.sh").read_text()
    assert f"(3, {least}) <= sys.version_info[:2] <= (3, {beyond - 1})" in setup


@pytest.mark.parametrize(
    ("holds", "record", "of_others"),
    [
        (None, False, False),
        ((), False, False),
        ((".git", "plan.yaml"), False, True),
        ((".code-12", "agent"), False, False),  # Another's record, or a lost one.
        (("agent",), True, False),  # An installation that was interrupted.
    ],
)
def test_a_checkout_in_the_place_of_the_code_is_refused(
    tmp_path: Path, holds: tuple[str, ...] | None, record: bool, of_others: bool
) -> None:
    look = PLAYBOOKS / "roles/look/files/look.py"
    home, recorded = tmp_path / "home", tmp_path / "installed.json"
    for name in holds or ():
        (home / name).mkdir(parents=True)
    if holds is not None:
        home.mkdir(exist_ok=True)
    if record:
        recorded.write_text("{}")
    said = subprocess.run(
        [sys.executable, "-c", look.read_text(), home, tmp_path, recorded],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert json.loads(said)["home_of_others"] is of_others
    (refusal,) = (
        task for role, task in tasks()
        if role == "before" and task.get("when") == "placewire_found.home_of_others"
    )  # fmt: skip
    assert "placewire_home" in refusal["ansible.builtin.fail"]["msg"]


def looked(folder: Path, *, path: str = os.environ["PATH"]) -> dict[str, Any]:
    """What the look finds where home, state and settings are in this folder."""
    look = PLAYBOOKS / "roles/look/files/look.py"
    said = subprocess.run(
        [sys.executable, "-c", look.read_text(),
         folder / "home", folder, folder / "installed.json"],
        capture_output=True, check=True, env={**os.environ, "PATH": path},
    ).stdout  # fmt: skip
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.parametrize(
    ("text", "protected"),
    [
        (None, []),
        ('{"server": "s1"}', []),
        ('{"protected": ["eno2", "eth0"]}', ["eno2", "eth0"]),
        ("protected: [eno2]", None),
        ('{"protected": "eno2"}', None),
        ("[]", None),
    ],
)
def test_what_a_server_s_configuration_protects_is_found(
    tmp_path: Path, text: str | None, protected: list[str] | None
) -> None:
    if text is not None:
        (tmp_path / "agent.json").write_text(text)
    assert looked(tmp_path)["protected"] == protected


@pytest.mark.parametrize(
    ("seconds_ago", "active", "older"), [(60, 0, True), (-1, 0, False), (60, 3, False)]
)
def test_an_agent_that_runs_what_was_there_before_is_found(
    tmp_path: Path, seconds_ago: float, active: int, older: bool
) -> None:
    """As an installation leaves it that was interrupted before its handlers ran."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.code-12").touch()
    began = time.monotonic() - seconds_ago
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(
        f"#!/bin/sh\n[ $1 != show ] || echo {round(began * 1e6)}\n[ $1 != -q ] || exit {active}\n"
    )
    systemctl.chmod(0o755)
    path = f"{systemctl.parent}:{os.environ['PATH']}"
    assert looked(tmp_path, path=path)["agent_is_older"] is older


def restart(folder: Path, python: str) -> tuple[subprocess.CompletedProcess[str], bool]:
    """Runs the command that restarts an agent, which runs; also says whether it was restarted.
    python: the shell program that stands in for the server's interpreter."""
    variables = yaml.safe_load((PLAYBOOKS / "roles/settings/vars/main.yaml").read_text())
    calls = folder / "calls"
    note = f'echo "$*" >> {calls}; [ $1 != is-active ] || echo active'
    for file, text in (("systemctl", note), ("home/.venv/bin/python", python)):
        program = folder / file
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    jinja = Environment()
    jinja.filters["quote"] = shlex.quote
    here = {"placewire_home": folder / "home", "placewire_settings": folder}
    made = jinja.from_string(variables["placewire_restart"]).render(variables | here)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", made], env={"PATH": path}, capture_output=True, text=True)
    return done, "restart placewire-agent.service" in calls.read_text()


@pytest.mark.parametrize(("python", "restarted"), [("exit 0", True), ("exit 1", False)])
def test_an_agent_whose_new_code_cannot_start_is_left_running(
    tmp_path: Path, python: str, restarted: bool
) -> None:
    """An upgrade may have failed between the code and its packages; handlers run all the same."""
    done, happened = restart(tmp_path, python)
    assert (done.returncode == 0) is happened is restarted and done.stdout == "active\n"


def with_state(folder: Path, state: str | None) -> str:
    """Writes an agent's configuration and its state; returns a stand-in for its interpreter."""
    config = agent_config("s1", URLS["s1"]) | {"state_dir": str(folder / "state")}
    (folder / "agent.json").write_text(json.dumps(config))
    if state is not None:
        (folder / "state").mkdir()
        (folder / "state/state.json").write_text(state)
    return f'PYTHONPATH={":".join(sys.path)} exec {sys.executable} "$@"'


KNOWN = Kept().model_dump_json()
OF_A_NEWER_RELEASE = json.dumps({**json.loads(KNOWN), "version": 1, "phases": []})


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, ""),
        (KNOWN.replace('"version":2', '"version":1'), ""),
        (OF_A_NEWER_RELEASE, "run the version of the agent that wrote it"),
        ("{", "--from-marks"),
    ],
)
def test_an_agent_whose_state_the_new_code_cannot_read_is_left_running(
    tmp_path: Path, state: str | None, said: str
) -> None:
    """It alone can undo what is in force there."""
    done, happened = restart(tmp_path, with_state(tmp_path, state))
    assert (done.returncode == 0) is happened is (not said), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not said or done.stderr.startswith("the agent runs on with its former code, as the code")


def test_nothing_else_of_the_playbooks_restarts_the_agent() -> None:
    whole = [json.dumps(task) for _, task in tasks()]
    assert sum("{{ placewire_restart }}" in task for task in whole) == 2
    assert not any("systemctl restart placewire-agent" in task for task in whole)
    services = [
        task["ansible.builtin.systemd_service"]
        for _, task in tasks()
        if "ansible.builtin.systemd_service" in task
    ]
    assert not any(
        "restarted" in str(one.get("state")) for one in services if one["name"] == "placewire-agent"
    )


@pytest.mark.slow
@pytest.mark.parametrize("role", ["agent", "enrolment"])
def test_a_refused_restart_is_told_with_its_reason(tmp_path: Path, role: str) -> None:
    """Runs the role's own task on this machine, with stand-ins for systemd and the interpreter."""
    (task,) = (
        {"ansible.builtin.shell": task["ansible.builtin.shell"]}
        for here, task in tasks()
        if here == role and task.get("ansible.builtin.shell") == {"cmd": "{{ placewire_restart }}"}
    )
    restart(tmp_path, with_state(tmp_path, OF_A_NEWER_RELEASE))
    (tmp_path / "calls").unlink()
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [task],
        "vars_files": [str(PLAYBOOKS / "roles/settings/vars/main.yaml")],
    }  # fmt: skip
    here = {"placewire_home": f"{tmp_path}/home", "placewire_settings": str(tmp_path)}
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,",
         "-e", json.dumps(here), written(tmp_path / "play.yaml", [play])],
        capture_output=True, text=True, timeout=600,
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_PIPELINING": "True",
             "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
             "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode != 0 and "run the version of the agent that wrote it" in done.stdout
    assert "restart" not in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("home", "shell", "record", "of_others"),
    [
        ("/home/placewire", "/bin/bash", "{}", True),
        ("STATE", "/bin/bash", "{}", True),
        ("STATE", "/usr/sbin/nologin", "{}", False),
        ("/home/placewire", "/bin/bash", '{"users": ["placewire"]}', False),
    ],
)
def test_a_user_of_somebody_s_with_the_agent_s_name_is_found(
    tmp_path: Path, home: str, shell: str, record: str, of_others: bool
) -> None:
    (tmp_path / "installed.json").write_text(record)
    look = (PLAYBOOKS / "roles/look/files/look.py").read_text()
    entry = ("placewire", "x", 990, 990, "", home.replace("STATE", str(tmp_path)), shell)
    known = f"import pwd; pwd.getpwnam = lambda name: pwd.struct_passwd({entry!r})\n"
    said = subprocess.run(
        [sys.executable, "-c", known + look, tmp_path, tmp_path, tmp_path / "installed.json"],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert json.loads(said)["user_of_others"] is of_others


def test_no_plan_goes_to_servers_with_the_code(tmp_path: Path) -> None:
    """Its job.env may have secrets, and every user of the server may read the code."""
    (argv,) = (
        task["ansible.builtin.command"]["argv"] for _, task in tasks()
        if task["name"] == "Pack the code into an archive here"
    )  # fmt: skip
    known = {"placewire_packing": {"path": str(tmp_path)}, "placewire_source": str(ROOT)}
    words = [Environment().from_string(word).render(known) for word in argv]
    subprocess.run(words, check=True)
    packed = subprocess.run(
        ["tar", "--list", "--file", tmp_path / "code.tar.gz"], capture_output=True, text=True
    ).stdout.splitlines()
    assert "examples/__init__.py" in packed and "deploy/setup.sh" in packed
    plans = {f"examples/plans/{file.name}" for file in (ROOT / "examples/plans").iterdir()}
    assert plans and plans.isdisjoint(packed)


@pytest.mark.parametrize("has_ip", [True, False])
def test_interfaces_are_listed_where_a_bare_server_has_no_ip(tmp_path: Path, has_ip: bool) -> None:
    """A second `--remove` meets it: the first one removed the package."""
    (task,) = (task for _, task in tasks() if task["name"] == "List interfaces")
    script = task["ansible.builtin.command"]["argv"][2]
    for place in ("/usr/sbin:/sbin", "/sys/class/net"):
        assert place in script
        script = script.replace(place, str(tmp_path))
    for name in ("eth0", "pw-nic0", "pw-nic1"):
        (tmp_path / name).touch()
    if has_ip:
        (tmp_path / "ip").write_text('#!/bin/sh\necho "[]"; echo "$*" >&2\n')
        (tmp_path / "ip").chmod(0o755)
    done = subprocess.run(["/bin/sh", "-c", script], env={"PATH": "/none"}, capture_output=True)
    links = [(link["ifname"], link["linkinfo"]["info_kind"]) for link in json.loads(done.stdout)]
    assert done.returncode == 0 and done.stderr == (
        b"-json -details link show\n" if has_ip else b""
    )
    assert links == ([] if has_ip else [(f"pw-nic{k}", "openvswitch") for k in range(2)])


@pytest.mark.slow
def test_what_is_protected_on_a_server_stays_protected(tmp_path: Path) -> None:
    """Somebody has named a NIC in agent.json there. Runs the role's own task on this machine."""
    (write,) = (
        task for role, task in tasks()
        if role == "agent" and task["name"] == "Write the agent's configuration"
    )  # fmt: skip
    file = tmp_path / "agent.json"
    file.write_text(json.dumps(agent_config("s1", URLS["s1"]) | {"protected": ["eno2", "eth0"]}))
    copy = {k: v for k, v in write["ansible.builtin.copy"].items() if k in ("dest", "content")}
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "vars": {
            "placewire_settings": str(tmp_path), "placewire_management_interfaces": ["eth0"],
            CONFIG: agent_config("s1", URLS["s1"]), "placewire_found": looked(tmp_path),
        },
        "tasks": [{"ansible.builtin.copy": copy}],
    }  # fmt: skip
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,",
         written(tmp_path / "play.yaml", [play])],
        capture_output=True, text=True, timeout=600,
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_PIPELINING": "True",
             "ANSIBLE_PYTHON_INTERPRETER": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert load_config(file).protected == ("eno2", "eth0")


def test_every_refusal_says_what_and_what_to_do() -> None:
    refusals = [task["ansible.builtin.fail"]["msg"] for _, task in tasks()
                if "ansible.builtin.fail" in task]  # fmt: skip
    assert len(refusals) >= 6
    for message in refusals:
        assert len(message.strip().splitlines()) == 2, message


def test_a_task_with_a_token_is_not_logged() -> None:
    with_token = [task for _, task in tasks() if ".token" in json.dumps(task)]
    assert len(with_token) == 1 and with_token[0]["no_log"] is True
    command = with_token[0]["ansible.builtin.command"]
    assert ".token" in command["stdin"] and ".token" not in json.dumps(command["argv"])


def on_this_machine(folder: Path, agent: str) -> Path:
    """Writes an inventory with this machine as its one server, and a stand-in for the agent."""
    file = folder / ".venv/bin/agent"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{agent}\n")
    file.chmod(0o755)
    local = {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
    }  # fmt: skip
    return written(folder / "own.yaml", {"all": {"hosts": {"s1": local}}})


async def test_a_token_reaches_the_agent_and_nothing_that_is_told_or_kept(tmp_path: Path) -> None:
    """Runs the role `enrolment` on this machine, with a stand-in for the agent's program."""
    secret = "pw1.s1.feed.a-secret-of-one-use"
    own = on_this_machine(
        tmp_path,
        f"[ $1 = enrol ] || exit 1; cat > {tmp_path}/got; "
        f"tr '\\0' ' ' < /proc/$$/cmdline > {tmp_path}/arguments; "
        "echo it was refused >&2; exit 1",
    )
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "s1.token").write_text(secret)
    told: list[Progress] = []
    variables = {
        "placewire_home": str(tmp_path), "placewire_tokens": str(tokens),
        "placewire_enrol_at": "h:1",
    }  # fmt: skip
    await Playbooks([own], check=False).run("enrol.yaml", ["s1"], variables, told.append)
    assert (tmp_path / "got").read_text().strip() == secret
    assert secret not in (tmp_path / "arguments").read_text()
    assert "a-secret" not in repr(told)
    failure = outcomes(["s1"], told)["s1"].failure
    assert failure is not None and "it was refused" in failure.reason, "the reason is not hidden"


async def test_cancelled_it_begins_no_other_task(tmp_path: Path) -> None:
    """The task that is under way ends by itself, as on a server."""
    began, goes_on, later = (tmp_path / name for name in ("began", "goes-on", "later"))
    own = on_this_machine(
        tmp_path,
        f"case $1 in certificate) touch {began}; for k in $(seq 600); do "
        f"[ -e {goes_on} ] && exit 1; sleep 0.1; done;; *) touch {later};; esac",
    )
    (tmp_path / "s1.token").write_text("pw1.s1.feed.secret")
    variables = {
        "placewire_home": str(tmp_path), "placewire_tokens": str(tmp_path),
        "placewire_enrol_at": "h:1",
    }  # fmt: skip
    running = asyncio.create_task(
        Playbooks([own], check=False).run("enrol.yaml", ["s1"], variables, lambda told: None)
    )
    while not began.exists():
        assert not running.done()
        await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    playbooks = subprocess.run(["pgrep", "-f", f"ansible-playbook.*{own}"], capture_output=True)
    goes_on.touch()
    await asyncio.sleep(2)
    assert not later.exists(), playbooks.stdout


@pytest.mark.parametrize("text", ["all: [", "all: {hosts: {s2: {}}}"])
async def test_what_ansible_cannot_run_is_told(tmp_path: Path, text: str) -> None:
    """Ansible itself ends with 0 where its inventory has no such server."""
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(UsageError, match="nothing of s1"):
        await Playbooks([own], check=False).run("enrol.yaml", ["s1"], {}, lambda told: None)


# Enrolment in the same command


class ServersHere(Playbooks):
    """Stands in for Ansible: enrols as the role does, with the agent's own code, and starts the
    agent's link. without: servers that have no certificate yet."""

    def __init__(self, folder: Path, without: Sequence[str]) -> None:
        super().__init__([], check=False)
        self.folder, self.without = folder, without
        self.ran: list[tuple[str, Sequence[str]]] = []
        self.tokens: list[str] = []
        self.links: list[asyncio.Task[None]] = []

    async def run(
        self,
        playbook: str,
        servers: Sequence[str],
        variables: Mapping[str, Any],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.ran.append((playbook, list(servers)))
        for server in servers:
            if playbook == "agent.yaml":
                on_progress(Certificate(server, server not in self.without))
            elif playbook == "enrol.yaml":
                await self._enrol(server, variables)

    async def _enrol(self, server: str, variables: Mapping[str, Any]) -> None:
        file = Path(variables["placewire_tokens"]) / f"{server}.token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        self.tokens.append(str(file))
        config = self.config(server)
        await asyncio.to_thread(enrol, config, variables["placewire_enrol_at"], file.read_text())
        hello = Hello(server=server, agent_pid=1, capabilities=capabilities(), lease=LEASE)
        link = ControllerConnection(config, create_autospec(Service), lambda: hello)
        self.links.append(asyncio.create_task(link.run()))

    def config(self, server: str) -> AgentConfig:
        state = self.folder / server
        state.mkdir(exist_ok=True)
        own = str(state / "agent.pem")
        return AgentConfig(
            server=server, controller_url=f"https://127.0.0.1:{self.link_port}",
            certificate_file=own, key_file=own, authority_file=str(state / "authority.crt"),
            state_dir=str(state),
        )  # fmt: skip

    link_port = 0


@pytest.mark.parametrize("comes_from", ["127.0.0.1", "10.9.0.1"])
async def test_who_has_no_certificate_enrols_and_dials_in(tmp_path: Path, comes_from: str) -> None:
    """It enrols only from its own address."""
    servers = ServersHere(tmp_path, without=["s1"])
    servers.link_port = free_port()
    site = Site(
        plan(), ["s1"], Authority.load(tmp_path / "ca"), ("127.0.0.1", servers.link_port),
        ("127.0.0.1", free_port()), "127.0.0.1", Silent(), {"s1": comes_from},
        RefusedConnections(tmp_path / "refused.jsonl"),
    )  # fmt: skip
    try:
        if comes_from != "127.0.0.1":
            with pytest.raises(EnrolmentError, match="403"):
                await install(site, servers, check=False)
            assert (
                "came from 127.0.0.1, but is valid only from 10.9.0.1"
                in site.outcomes["s1"].notes[0]
            )
            (line,) = (tmp_path / "refused.jsonl").read_text().splitlines()
            noted = json.loads(line)
            assert noted["from"] == "127.0.0.1" and "valid only from 10.9.0.1" in noted["why"]
        else:
            found = await install(site, servers, check=False)
            assert found["s1"] == Outcome(), "it is there"
            assert not (tmp_path / "refused.jsonl").exists()
    finally:
        for link in servers.links:
            link.cancel()
    assert servers.ran == [("agent.yaml", ["s1"]), ("enrol.yaml", ["s1"])]
    assert not Path(servers.tokens[0]).exists()


async def test_who_is_turned_away_while_agents_are_awaited_is_told_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Agents.wait_for

    async def until_one_was(agents: Agents, servers: Sequence[str], timeout_seconds: float) -> None:
        async with asyncio.timeout(60):
            while not agents._refused_connections.told:
                await asyncio.sleep(0.01)
        await usual(agents, servers, timeout_seconds=0.1)

    monkeypatch.setattr(Agents, "wait_for", until_one_was)
    port, file = free_port(), tmp_path / "refused.jsonl"
    site = Site(
        plan(), ["s1"], Authority.load(tmp_path / "ca"), ("127.0.0.1", port),
        ("127.0.0.1", free_port()), "127.0.0.1", Silent(),
        refused_connections=RefusedConnections(file),
    )  # fmt: skip

    async def stranger() -> None:
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                await asyncio.sleep(0.2)
                writer.close()
            await asyncio.sleep(0.05)

    dialling = asyncio.create_task(stranger())
    found = await install(site, ServersHere(tmp_path, without=[]), check=False)
    dialling.cancel()
    assert found["s1"].failure is not None and "127.0.0.1" in found["s1"].notes[0]
    assert json.loads(file.read_text().splitlines()[0])["from"] == "127.0.0.1"


def test_of_64_servers_each_is_told_of_its_own_refusals_and_a_few_strangers() -> None:
    addresses = {f"s{k}": f"10.9.0.{k}" for k in range(1, 65)}
    own = [f"{address}: certificate of {s!r}: denied" for s, address in addresses.items()]
    strange = [f"10.1.1.{k}: it shows no certificate" for k in range(20)]
    told = _turned_away([*own, *strange], addresses)
    assert told["s7"] == ["10.9.0.7: certificate of 's7': denied", *strange[-4:]]
    assert sum(map(len, told.values())) == 64 * 5


async def test_who_has_a_certificate_gets_no_token(tmp_path: Path) -> None:
    servers = ServersHere(tmp_path, without=[])
    site = Site(
        plan(), ["s1", "s2"], Authority.load(tmp_path / "ca"), ("127.0.0.1", free_port()),
        ("127.0.0.1", free_port()), "127.0.0.1", Silent(),
    )  # fmt: skip
    await install(site, servers, check=True)
    assert servers.ran == [("agent.yaml", ["s1", "s2"])]


async def test_a_check_is_told_of_as_a_question(tmp_path: Path) -> None:
    for check, told in ((True, ["preview", "preview"]), (False, ["remove"])):
        show = Silent()
        site = Site(
            plan(), ["s1"], Authority.load(tmp_path / "ca"), ("127.0.0.1", free_port()),
            ("127.0.0.1", free_port()), "127.0.0.1", show,
        )  # fmt: skip
        servers = ServersHere(tmp_path, without=[])
        if check:
            await install(site, servers, check=check)
        await remove(site, servers, check=check)
        assert show.stages == told


class Silent:
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, name: str) -> None:
        self.stages.append(name)

    def provisioning(self, told: Progress) -> None: ...


# The command


def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    """Returns (exit code, standard error)."""
    file = written(tmp_path / "plan.yaml", plan_document())
    with pytest.raises(SystemExit) as raised:
        main(["provision", str(file), "--state-dir", str(tmp_path / "state"), *words])
    return raised.value.code, capsys.readouterr().err


def test_a_server_that_the_plan_has_not_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = command(tmp_path, capsys, "--server", "s9")
    assert code == 2 and "s9" in said and "s1, s2, s3" in said


def test_a_user_s_name_that_ssh_would_take_for_an_option_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = command(tmp_path, capsys, "--login=-oProxyCommand=x")
    assert code == 2 and "--login" in said and "is not a user's name" in said


def test_nothing_is_changed_without_a_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115, PTH123
    code, said = command(tmp_path, capsys, "--controller", "10.9.0.254")
    assert code == 2 and "--yes" in said


def test_an_inventory_of_other_servers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = written(tmp_path / "own.yaml", {"all": {"hosts": {"gpu-1.example": {}}}})
    words = ("--controller", "10.9.0.254", "--yes", "--inventory", str(other))
    code, said = command(tmp_path, capsys, *words)
    assert code == 2 and "names none of s1, s2, s3" in said and "gpu-1.example" in said


def test_the_inventory_of_a_plan_is_written_for_plain_ansible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "inventory.yaml"
    words = ("--controller", "10.9.0.254", "--write-inventory", str(file))
    assert command(tmp_path, capsys, *words)[0] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set(host_variables([file])) == {"s1", "s2", "s3"}
    code, said = command(tmp_path, capsys, *words)
    assert code == 2 and "exists already" in said


def test_a_server_that_nobody_reaches_ends_with_five(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ansible's own SSH dials a port of this machine where nothing listens."""
    own = written(
        tmp_path / "own.yaml",
        {"all": {"hosts": {"s1": {"ansible_host": "127.0.0.1", "ansible_port": 1}}}},
    )
    code, said = command(
        tmp_path, capsys, "--server", "s1", "--inventory", str(own), "--check",
        "--controller", "10.9.0.254",
    )  # fmt: skip
    assert code == 5 and "s1: connection: SSH does not reach it" in said
    assert "look at its management address" in said


# agent certificate


def test_the_agent_says_whether_its_certificate_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, other = Authority.load(tmp_path / "ca"), Authority.load(tmp_path / "other")
    own = tmp_path / "agent.pem"
    config = AgentConfig(
        server="s1", controller_url=URLS["s1"], certificate_file=str(own), key_file=str(own),
        authority_file=str(authority.certificate_file), state_dir=str(tmp_path),
    )  # fmt: skip
    file = tmp_path / "agent.json"
    file.write_text(config.model_dump_json())
    assert agent_main(["certificate", "--config", str(file)]) == 1
    assert "No such file" in capsys.readouterr().err

    def have(server: str, lifetime_seconds: float, of: Authority = authority) -> None:
        key = new_key(server)
        chain = of.sign(key.request_pem, server, lifetime_seconds=lifetime_seconds)
        keep(own, key.key_pem, chain.decode(), like=tmp_path)

    have("s1", 3600)
    assert agent_main(["certificate", "--config", str(file), "--authority", authority.sha256]) == 0
    with pytest.raises(ValueError, match="another authority"):
        require_serving(config, other.sha256)
    have("s1", -60)
    with pytest.raises(ValueError, match="it is valid from"):
        require_serving(config, None)
    have("s2", 3600)
    with pytest.raises(ValueError, match="another server"):
        require_serving(config, None)
    have("s1", 3600, of=other)
    with pytest.raises(ValueError, match="not the authority that issued it"):
        require_serving(config, None)


def _task(name: str) -> Mapping[str, Any]:
    return next(task for _, task in tasks() if task["name"] == name)


@pytest.mark.parametrize(
    ("before", "now", "sets"),
    [(212_992, 212_992, True), (212_992, 8_388_608, False), (16_777_216, 16_777_216, False)],
)
def test_a_larger_send_buffer_of_others_is_not_made_smaller(
    before: int, now: int, sets: bool
) -> None:
    known = {
        "placewire_userspace": True,
        "placewire_added": {"send_buffer_bytes": before},
        "placewire_found": {"send_buffer_bytes": now},
        "placewire_sysctl": {"changed": True},
        "placewire_send_buffer_bytes": 8_388_608,
    }
    loads = Environment().compile_expression(_task("Load the send buffer's size")["when"])
    writes = Environment().compile_expression(
        _task("Set the send buffer of the userspace datapath")["when"]
    )
    assert bool(loads(known)) == sets
    assert bool(writes(known)) == (before < 8_388_608)


@pytest.mark.parametrize(("now", "back"), [("8388608", True), ("16777216", False)])
def test_only_our_own_send_buffer_is_put_back(now: str, back: bool) -> None:
    known = {
        "placewire_sysctl_file": "ours",
        "placewire_had": ["ours"],
        "placewire_send_buffer": {"stdout": now},
        "placewire_send_buffer_bytes": 8_388_608,
        "placewire_added": {"send_buffer_bytes": 212_992},
    }
    puts = Environment().compile_expression(_task("Put back the send buffer")["when"])
    tells = Environment().compile_expression(_task("Tell that the send buffer stays")["when"])
    assert (bool(puts(known)), bool(tells(known))) == (back, not back)
