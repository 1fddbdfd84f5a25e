"""Shows findings: as tables of at most 100 columns, or as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from placewire.agent.answers import DoctorAnswer, answered
from placewire.agent.contract.diagnosis import Finding
from placewire.agent.contract.state import NicFacts
from placewire.agent.doctor.facts import Facts
from placewire.agent.doctor.findings import ORDER, exit_code
from placewire.visible_console import VisibleConsole

WIDTH = 100
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_GIGABIT = 1e9


def document(facts: Facts, found: Sequence[Finding]) -> str:
    """The findings and the facts that they follow from, as JSON."""
    content: DoctorAnswer = {
        "server": facts.server,
        "exit_code": exit_code(tuple(found)),
        "findings": [one.model_dump() for one in found],
        "facts": facts.model_dump(mode="json"),
    }
    return answered(content)


def print_findings(facts: Facts, found: Sequence[Finding]) -> None:
    console = VisibleConsole(file=sys.stdout, width=WIDTH)
    kernel = facts.traffic_control
    has = ", ".join((*kernel.qdiscs, *kernel.classifiers)) if kernel.known else "not known"
    console.print(
        f"{facts.server}: Open vSwitch {facts.switch.version or 'is missing'}, "
        f"{facts.switch.datapath} datapath; kernel {facts.kernel_version}: {has}"
    )
    console.print(_nic_table(facts))
    if found:
        console.print(_finding_table(found))
    counts = Counter(one.severity for one in found)
    console.print(", ".join(f"{counts[s]} {s}{'s' * (counts[s] != 1)}" for s in ORDER))


def _nic_table(facts: Facts) -> Table:
    ours = {bridge.nic: bridge.name for bridge in facts.observed.bridges}
    table = Table(title="NICs", title_justify="left")
    for heading in ("NIC", "driver", "addresses", "use"):
        table.add_column(heading, overflow="fold")
    for heading in ("Gbit/s", "MTU", "at most", "link"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("RDMA", "offload"):
        table.add_column(heading, no_wrap=True)
    candidates = {nic.name for nic in facts.candidates}
    for nic in facts.observed.nics:
        speed = nic.speed_bits_per_second
        table.add_row(
            Text(nic.name),
            nic.driver or "?",
            " ".join(nic.addresses) or "-",
            ours.get(nic.name) or _use(nic, nic.name in candidates),
            "?" if speed is None else f"{speed / _GIGABIT:g}",
            str(nic.mtu_bytes),
            str(nic.largest_mtu_bytes or "?"),
            _link(nic),
            "yes" if nic.rdma else "no",
            "yes" if nic.name in facts.offloading else "no",
        )
    return table


def _use(nic: NicFacts, candidate: bool) -> str:
    if nic.bridge is not None:
        return f"port of {nic.bridge}"
    return "free to plan" if candidate else "not ours to use"


def _link(nic: NicFacts) -> str:
    if not nic.up:
        return "down"
    return "no carrier" if nic.carrier is False else "up"


def _finding_table(found: Sequence[Finding]) -> Table:
    table = Table(title="Findings", title_justify="left", show_lines=True)
    table.add_column("", no_wrap=True)
    table.add_column("where", overflow="fold", max_width=22)
    table.add_column("what, why, and what to do", overflow="fold")
    for one in found:
        text = Text(one.what)
        text.append(f"\n{one.why}", style="dim")
        if one.remedy:
            text.append(f"\n> {one.remedy}")
        table.add_row(Text(one.severity, style=_STYLES[one.severity]), Text(one.where), text)
    return table
