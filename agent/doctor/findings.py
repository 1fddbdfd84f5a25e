"""Makes all findings about one server, the worst first. Pure."""

from __future__ import annotations

from placewire.agent.contract.diagnosis import Finding, Severity
from placewire.agent.doctor.checks_nics import nic_findings
from placewire.agent.doctor.checks_others import other_findings
from placewire.agent.doctor.checks_own import own_findings
from placewire.agent.doctor.checks_switch import kernel_findings, speed_findings, switch_findings
from placewire.agent.doctor.facts import Facts

ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_EXIT_CODES = {"error": 2, "warning": 1, "note": 0}


def findings(facts: Facts) -> tuple[Finding, ...]:
    found = (
        *switch_findings(facts),
        *kernel_findings(facts),
        *speed_findings(facts),
        *nic_findings(facts),
        *other_findings(facts),
        *own_findings(facts),
    )
    return tuple(sorted(dict.fromkeys(found), key=lambda one: ORDER.index(one.severity)))


def exit_code(found: tuple[Finding, ...]) -> int:
    """The exit code of the worst finding."""
    return max((_EXIT_CODES[one.severity] for one in found), default=0)
