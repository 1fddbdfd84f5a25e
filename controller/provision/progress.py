"""Turns ansible-runner's events into the progress of a playbook, in plain words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# This task of playbooks/roles/enrolment says by its exit status whether a token is needed.
CERTIFICATE_TASK = "Check whether the agent's certificate is valid"

STAGES = {
    "look": "what is there",
    "before": "what is there",
    "packages": "packages",
    "open_vswitch": "Open vSwitch",
    "network_managers": "network managers",
    "clock": "clock",
    "agent": "agent",
    "enrolment": "certificate",
    "job_environment": "job's environment",
    "lease": "lease",
    "removal": "removal",
}
_APT = "apt-get must work there: look at its sources, its proxy, and what else uses it now"
_REMEDIES = {
    "before": _APT,
    "packages": _APT,
    "open_vswitch": "on that server: journalctl -u ovsdb-server -u ovs-vswitchd",
    "agent": "if packages are missing, name an index that the server reaches, in "
    "placewire_setup_environment of an inventory (docs/cluster.md)",
    "job_environment": "name an index that the server reaches and that has torch, in "
    "placewire_setup_environment of an inventory (docs/cluster.md); the agent works without it",
    "enrolment": "on that server: journalctl -u placewire-agent",
    "removal": "run it again: it goes on where it ended",
}
_ELSEWHERE = "look at the server, then run it again: nothing is done twice"
_NOTE = "ansible.builtin.debug"
_REASON_LINES = 3
_LONGEST_REASON = 400


@dataclass(frozen=True)
class Began:
    """A stage began, on all servers."""

    stage: str


@dataclass(frozen=True)
class Changed:
    """Something was changed; in a check, it would be."""

    server: str
    stage: str
    what: str


@dataclass(frozen=True)
class Noted:
    server: str
    what: str


@dataclass(frozen=True)
class Failed:
    server: str
    task: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Certificate:
    """serves: whether the server has a certificate that it can use."""

    server: str
    serves: bool


Progress = Began | Changed | Noted | Failed | Certificate


@dataclass
class Outcome:
    """What became of one server."""

    changes: list[Changed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failure: Failed | None = None

    def document(self) -> dict[str, Any]:
        """For --json."""
        failure = self.failure
        return {
            "changed": [f"{change.stage}: {change.what}" for change in self.changes],
            "notes": list(self.notes),
            "failed": failure
            and {"task": failure.task, "what": failure.reason, "remedy": failure.remedy},
        }


def outcomes(servers: Iterable[str], told: Iterable[Progress]) -> dict[str, Outcome]:
    found = {server: Outcome() for server in servers}
    for one in told:
        if isinstance(one, Changed):
            found[one.server].changes.append(one)
        elif isinstance(one, Noted) and one.what not in found[one.server].notes:
            found[one.server].notes.append(one.what)
        elif isinstance(one, Failed):
            found[one.server].failure = one
    return found


def read_event(event: Mapping[str, Any]) -> Progress | None:
    """Returns None where an event of ansible-runner's tells nothing."""
    data = event.get("event_data") or {}
    kind, role = event.get("event"), data.get("role") or ""
    stage, task = STAGES.get(role, role), str(data.get("task", ""))
    if kind == "playbook_on_task_start":
        return Began(stage) if stage else None
    server, result = data.get("host"), data.get("res") or {}
    if not isinstance(server, str) or not isinstance(result, Mapping):
        return None
    if kind == "runner_on_unreachable":
        return Failed(server, "connection", *_of_connection(str(result.get("msg", ""))))
    if kind == "runner_on_failed":
        return None if data.get("ignore_errors") else _failure(server, role, task, result)
    if kind != "runner_on_ok":
        return None
    if task == CERTIFICATE_TASK:
        return Certificate(server, result.get("rc") == 0)
    note = str(result.get("msg", "")) if data.get("task_action") == _NOTE else ""
    if result.get("changed"):
        return Changed(server, stage, f"{task}: {note}" if note else task)
    return Noted(server, note) if note else None


def _failure(server: str, role: str, task: str, result: Mapping[str, Any]) -> Failed:
    """A refusal of Placewire's own playbooks has its remedy on a second line."""
    # A loop's; a module may call something else so.
    items = result.get("results")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("failed"):
            result = item
            break
    said = str(result.get("msg", ""))
    where = f"{STAGES.get(role, role)}: {task}"
    if "stderr" not in result and "module_stderr" not in result:
        what, _, remedy = said.partition("\n")
        return Failed(server, where, _short(what), remedy or _remedy(role, said))
    printed = result.get("stderr") or result.get("module_stderr") or result.get("stdout") or said
    reason = _short("; ".join(_last_lines(str(printed))) or said)
    return Failed(server, where, reason, _remedy(role, f"{said}\n{printed}"))


def _remedy(role: str, said: str) -> str:
    if "password is required" in said or "Missing sudo password" in said:
        return (
            "name a user who may become root (--login), let that one use sudo without a password, "
            "or give ansible_become_password in an inventory (--inventory)"
        )
    if "python3: not found" in said or "No such file or directory: '/usr/bin/python3'" in said:
        return "on that server: apt-get install python3"
    return _REMEDIES.get(role, _ELSEWHERE)


def _of_connection(said: str) -> tuple[str, str]:
    """Returns (what, remedy). ssh's own complaint is the last line."""
    what = f"SSH does not reach it: {_short('; '.join(_last_lines(said)[-1:]) or said)}"
    if "Host key verification failed" in said or "host key" in said.lower():
        return what, (
            "compare the fingerprint of its host key (`ssh-keyscan HOST | ssh-keygen -lf -`), then "
            "add what ssh-keyscan prints to known_hosts (launch.known_hosts)"
        )
    if "Permission denied" in said:
        return what, (
            "name a user and a key that it accepts (--login, launch.key, or an inventory), or "
            "load the key into ssh-agent"
        )
    if "password" in said.lower():
        return what, _remedy("", "password is required")
    return what, "look at its management address, its sshd and the network in between"


def _last_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()][-_REASON_LINES:]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"
