"""Advises about the lab of a plan whose agents do not answer.

Nothing outlives a lab that would tell its plan from one of servers. But ranks of a lab are started
without `launch`, so a plan that has it is of servers.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.agent_advice import lab_first
from placewire.controller.errors import AgentUnreachable, PlacewireError
from placewire.controller.own_lab import own_lab

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan


def about_lab(plan: Plan, file: Path, silent: Collection[str]) -> str:
    """Says that the plan's lab may not be up, and what to do; returns "" where it is not the lab.
    silent: servers whose agents do not answer; in a lab that is not up, all of them."""
    names = {server.name for server in plan.cluster.servers}
    if plan.launch is not None or own_lab() is not None or not names <= {*silent}:
        return ""
    from placewire.controller.lab import find_lab

    try:
        lab = find_lab(plan.name)
    except PlacewireError as problem:
        return f"{problem.what}: {problem.remedy}"
    if lab is None:
        return (
            f"no lab {plan.name!r} is up on this machine: where the plan is for a lab, `controller "
            f"lab up {file}` makes it"
        )
    return f"the lab {plan.name!r} is up on this machine, and --no-lab keeps this command out of it"


def add_lab_advice(error: AgentUnreachable, plan: Plan, file: Path) -> None:
    """The error's remedy begins with what may be the matter with the plan's lab. All else that it
    says stays."""
    error.remedy = lab_first(about_lab(plan, file, error.servers), error.remedy)
