"""Tells the ranks of a plan from others' that run on the same servers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.controller.few_names import few_names
from placewire.controller.launch.launcher import RunningProgram


def of_plan(
    ranks: Sequence[RunningProgram], plan_name: str
) -> tuple[tuple[RunningProgram, ...], tuple[RunningProgram, ...]]:
    """Returns (the plan's own ranks, the others). Those of which nobody knows the plan are others:
    only what is surely the plan's may be ended for it."""
    own = tuple(rank for rank in ranks if rank.plan == plan_name)
    return own, tuple(rank for rank in ranks if rank.plan != plan_name)


def where(ranks: Sequence[RunningProgram]) -> str:
    return few_names([f"{rank.server} (pid {rank.pid})" for rank in ranks])


def about_others(others: Sequence[RunningProgram]) -> list[str]:
    """A sentence for each plan whose ranks run on these servers, which says how they end."""
    by_plan: dict[str, list[RunningProgram]] = {}
    for rank in others:
        by_plan.setdefault(rank.plan, []).append(rank)
    return [_about(plan, ranks) for plan, ranks in sorted(by_plan.items())]


def _about(plan: str, ranks: Sequence[RunningProgram]) -> str:
    if plan:
        return (
            f"ranks of plan {plan!r} run on {where(ranks)} and are left alone: they may be a job "
            "that somebody is running. If nobody is, `controller destroy` with that plan's file "
            "ends them"
        )
    return (
        f"ranks that a former release started run on {where(ranks)}; nothing says of which plan "
        "they are, so they are left alone. They end with their lease; `kill PID`, on that server "
        "and as their user, ends one at once"
    )
