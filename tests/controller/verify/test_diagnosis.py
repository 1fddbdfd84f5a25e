"""The controller finds what one server alone cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.diagnosis import Diagnosis, Finding
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import LeaseState, NicFacts
from placewire.controller.own_lab import OwnLab
from placewire.controller.show.findings import findings_table
from placewire.controller.verify.diagnosis import (
    absent,
    copied,
    of_a_lab,
    plan_findings,
    versions_and_clocks,
)
from tests.controller.plans import plan, plan_document

PLAN = plan(plan_document(2, rate="10Gbit"))
AS_PLANNED = {"nic0": "10.7.0.1/24", "nic1": "10.7.1.1/24"}


def nic(name: str, **changes: Any) -> NicFacts:
    fields: dict[str, Any] = {
        "name": name, "mac": "02:00:00:00:00:01", "mtu_bytes": 1500, "up": True,
        "speed_bits_per_second": 10_000_000_000, "driver": "mlx5_core", "rdma": False,
        "addresses": (AS_PLANNED[name],), "bridge": None, "carrier": True,
    }  # fmt: skip
    return NicFacts(**{**fields, **changes})


def found(*nics: NicFacts) -> list[tuple[str, str, str]]:
    hello = Hello(
        server="s1", agent_pid=1, lease=LeaseState(phase="idle", generation=0),
        capabilities=Capabilities(
            datapath="system", set_queue_honoured=True, open_vswitch_version="3.1.0",
            kernel_version="6.1", python_version="3.11", nics=nics,
        ),
    )  # fmt: skip
    (findings,) = plan_findings(PLAN, {"s1": hello}).values()
    return [(one.severity, one.where, one.what) for one in findings]


def test_a_server_as_the_plan_says_has_no_finding() -> None:
    assert found(nic("nic0"), nic("nic1")) == []


def test_a_nic_that_is_not_there() -> None:
    assert found(nic("nic0")) == [("error", "NIC nic1", "is not there")]


def test_a_nic_at_the_wrong_speed() -> None:
    slow = nic("nic1", speed_bits_per_second=1_000_000_000)
    told = "runs at 1 Gbit/s, the plan says 10 Gbit/s"
    assert found(nic("nic0"), slow) == [("error", "NIC nic1", told)]
    assert found(nic("nic0"), nic("nic1", speed_bits_per_second=None)) == []


def test_a_nic_without_a_cable_or_with_another_address() -> None:
    bare = nic("nic1", carrier=False, addresses=())
    assert found(nic("nic0"), bare) == [
        ("error", "NIC nic1", "has no carrier"),
        ("note", "NIC nic1", "has no address, not the plan's 10.7.1.1/24"),
    ]
    assert found(nic("nic0"), nic("nic1", addresses=(), bridge="pw-nic1")) == []


def test_other_versions_and_clocks_that_differ() -> None:
    same = Diagnosis(findings=(), version="1.0", clock_unix=0.0)
    other = same.model_copy(update={"version": "0.9"})
    told = versions_and_clocks({"s1": same, "s2": other}, "1.0", {"s1": -2.5, "s2": 0.5})
    assert [(one.where, one.what) for one in told["s1"]] == [("clock", "is 2.5 s behind ours")]
    assert [one.what for one in told["s2"]] == ["is version 0.9, the controller 1.0"]


def test_a_setting_that_labs_raise_for_their_switches_is_no_finding_there() -> None:
    """The agents read the machine's, which is put back once the switches have their sockets."""
    buffer = Finding(
        severity="warning", what="is 212992", where="net.core.wmem_default", why="", remedy=""
    )
    other = copied("s1", ("10.0.0.1", "10.0.0.2"))
    assert of_a_lab((buffer, other), OwnLab("here", Path("/lab"))) == (other,)


def test_what_servers_share_is_shown_once() -> None:
    shared = Finding(severity="warning", what="is off", where="clock", why="why", remedy="mend it")
    own = shared.model_copy(update={"where": "NIC nic0"})
    console = Console(width=100, record=True, file=None)
    with console.capture() as shown:
        console.print(findings_table({"s1": (shared, own), "s2": (), "s3": (shared,)}))
    rows = [
        [cell.strip() for cell in line.split("│")[1:4]]
        for line in shown.get().splitlines()
        if line.startswith("│")
    ]
    assert rows[:2] == [["s1", "warning", "clock"], ["s3", "", ""]]
    assert [row[0] for row in rows[2:] if row[0]] == ["s1"], "of the second finding"


def test_the_worst_of_a_server_is_shown_first_and_nothing_is_cut() -> None:
    note = Finding(severity="note", what="w" * 150, where="[here]", why="why", remedy="")
    console = Console(width=100, record=True, file=None)
    with console.capture() as shown:
        console.print(findings_table({"s1": (note, absent("s1"))}))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert text.index("does not dial in") < text.index("[here]")
    assert text.count("w" * 20) >= 2
