"""Advises users about agents. On a server systemd runs the agent. A lab has no units:
its agents' logs are in its folder, and its own commands make all of it anew."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.agent.contract import command
from placewire.controller.few_names import few_names
from placewire.controller.own_lab import own_lab

AGENT_UNIT = "placewire-agent"
AGENT = command.AGENT


def find_out_why(servers: Sequence[str]) -> str:
    """Why the agents of these servers do not answer."""
    if (lab := own_lab()) is not None:
        return f"{look_into_logs(servers)}; where the agent has ended, {make_anew(lab.name)}"
    return (
        f"check that the agent runs there (`systemctl status {AGENT_UNIT}`; `controller provision` "
        "installs it) and reaches this machine: it dials `controller_url` of its "
        "/etc/placewire/agent.json, which `controller provision` writes anew"
    )


def lab_first(about_lab: str, remedy: str) -> str:
    """about_lab: what may be the matter with the lab, where a plan may be of one; else ""."""
    return f"{about_lab}; for servers: {remedy}" if about_lab else remedy


def look_into_logs(servers: Sequence[str]) -> str:
    if (lab := own_lab()) is not None:
        logs = [str(lab.directory / server / "agent.log") for server in servers]
        return f"look into {few_names(logs)}"
    return f"look into the agent's log there: `journalctl -u {AGENT_UNIT}`"


def restore_by_hand(servers: Sequence[str]) -> str:
    """The steps that a person must take on servers whose agent could not restore. Its daemon must
    be stopped, because it keeps the state locked; systemd would restart one that was only killed.
    """
    if (lab := own_lab()) is not None:
        return f"{look_into_logs(servers)}; then {make_anew(lab.name)}"
    return (
        f"on {', '.join(servers)}, as root: `systemctl stop {AGENT_UNIT}`, then `{AGENT} restore`; "
        f"`{AGENT} status` shows what is left; then `systemctl start {AGENT_UNIT}`"
    )


def give_up(servers: Sequence[str], *, first: str = "") -> str:
    """What to do where one of these servers never answers again. first: what is to be done before
    that."""
    named = f"--server {servers[0]}" if len(servers) == 1 else "--server SERVER"
    return (
        f"where a server never comes back, {first}`controller destroy PLAN {named} --forget` has "
        "the journal give up what it had"
    )


def leave_out() -> str:
    """How a decision that was to be kept on a server, too, is settled without it."""
    return (
        "take it out of the plan's file, and `controller apply PLAN` with `on_exit: keep`, or "
        "`controller destroy PLAN`"
    )


def see_what_makes_it_so(server: str) -> str:
    """Why what the agent of this server says cannot be taken for true."""
    if (lab := own_lab()) is not None:
        return f"{look_into_logs([server])}; where it stays so, {make_anew(lab.name)}"
    return f"look on that server what makes it so, as root: `{AGENT} status`"


def doubt_generation(server: str) -> str:
    """What to do where an agent names a generation that no controller gave it."""
    if (lab := own_lab()) is not None:
        return f"{look_into_logs([server])}; then {make_anew(lab.name)}"
    return (
        f"look there, as root, whether `{AGENT} status` says so, too. If not, another has its "
        f"certificate: `controller authority deny {server}`, then `controller enrol {server}`. If "
        f"so, its state is damaged: `systemctl stop {AGENT_UNIT}` there, run `{AGENT} restore`, "
        "and move its state.json and state.copy.json away"
    )


def make_anew(lab: str) -> str:
    return (
        f"`controller lab down {lab}` and then `controller lab up PLAN` make the lab anew, "
        "without its history and logs"
    )
