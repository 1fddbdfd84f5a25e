"""What stands in the way on a server, as `agent doctor` finds it."""

from __future__ import annotations

from typing import Literal

from placewire.frozen import Frozen

Severity = Literal["error", "warning", "note"]


class Finding(Frozen):
    """error: Placewire cannot work, or holds no promise. warning: a plan is refused, or somebody
    may interfere. note: good to know. remedy: a command, or what to do; "" where nothing is due."""

    severity: Severity
    what: str
    where: str
    why: str
    remedy: str


class Diagnosis(Frozen):
    """findings: the worst first. version: of the agent's package. clock_unix: its clock then."""

    findings: tuple[Finding, ...]
    version: str
    clock_unix: float
