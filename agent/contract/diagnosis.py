"""What `agent doctor` found on a server: findings, and when they were made."""

from __future__ import annotations

from typing import Literal

from placewire.agent.contract.numbers import ToldSeconds
from placewire.frozen import Frozen

Severity = Literal["error", "warning", "note"]


class Finding(Frozen):
    """error: Placewire cannot work, or cannot keep its promises. warning: a plan will be refused,
    or another program may interfere. note: good to know. remedy: what to do; "" for nothing."""

    severity: Severity
    what: str
    where: str
    why: str
    remedy: str


class Diagnosis(Frozen):
    """findings: the worst first. version: of the agent. clock_unix: the server's clock then."""

    findings: tuple[Finding, ...]
    version: str
    clock_unix: ToldSeconds
