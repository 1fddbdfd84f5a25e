"""What is advised about an agent works where the agent is: on a server, or in a lab."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from placewire.agent.contract.diagnosis import Finding
from placewire.agent.contract.state import Refusal
from placewire.agent.reconcile.refusals_switch import REMEDY as TOO_OLD
from placewire.controller.agent_advice import AGENT, doubt_generation, see_what_makes_it_so
from placewire.controller.change.not_restored import not_restored
from placewire.controller.errors import AgentUnreachable
from placewire.controller.lab.lab import Lab
from placewire.controller.lab.record import LabRecord
from placewire.controller.own_lab import OwnLab
from placewire.controller.verify.diagnosis import absent, of_a_lab

LEFT = {"s2": (Refusal(what="nic0 is still in pw-nic0", where="nic0", remedy="look"),)}


def _advice() -> Sequence[str]:
    remedies = (AgentUnreachable(["s2"]).remedy, not_restored(LEFT).remedy, absent("s2").remedy)
    return *remedies, doubt_generation("s2")


def test_a_server_s_agent_is_a_unit_of_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLACEWIRE_LAB", raising=False)
    for advice in _advice():
        assert "systemctl" in advice and "lab" not in advice
    assert f"as root: `{AGENT} status`" in see_what_makes_it_so("s2")
    assert "`controller provision` installs it" in AgentUnreachable(["s2"]).remedy
    # The controller may be on another machine than before.
    assert "it dials `controller_url` of its /etc/placewire/agent.json" in absent("s2").remedy


def test_a_lab_s_agent_has_a_log_and_the_lab_s_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    record = LabRecord(
        name="here", servers=(), controller_namespace="c", controller_address="10.9.0.254",
        namespaces=(),
    )  # fmt: skip
    lab = Lab(record)
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    for advice in (*_advice(), see_what_makes_it_so("s2")):
        assert "systemctl" not in advice and AGENT not in advice
        assert f"look into {lab.directory}/s2/agent.log; " in advice
        assert "`controller lab down here` and then `controller lab up PLAN`" in advice
        assert "without its history" in advice


@pytest.mark.parametrize(
    "remedy, has_units",
    [
        ("systemctl status openvswitch-switch", True),
        (TOO_OLD, True),
        ("systemctl disable --now lldpad", False),
        ("apt-get install openvswitch-switch", False),
    ],
)
def test_a_lab_s_switches_and_agents_are_no_units(
    remedy: str, has_units: bool, tmp_path: Path
) -> None:
    found = Finding(severity="error", what="is away", where="switch", why="", remedy=remedy)
    (told,) = of_a_lab([found], OwnLab("here", tmp_path))
    assert told.remedy.startswith(remedy)
    assert ("instead of systemctl: `controller lab down here`" in told.remedy) is has_units
