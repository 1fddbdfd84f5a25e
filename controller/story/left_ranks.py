"""Ends the ranks of a plan's job whose controller is gone, and leaves those of other plans alone.

Looking for ranks and ending them blocks a thread that an interrupt does not wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from placewire.controller.abandonable import abandonable
from placewire.controller.errors import JobFailed, LaunchFailed
from placewire.controller.launch.launcher import Launcher, RunningProgram
from placewire.controller.launch.of_plans import about_others, of_plan, where
from placewire.controller.story.tools import Tools
from placewire.controller.uninterruptible import (
    NOTHING_CHANGED,
    interrupt_means,
    meaning_of_interrupt,
)

# What an interrupt means meanwhile.
_ENDING_RANKS = f"{NOTHING_CHANGED}; ranks that were told to end do so"


async def end_left_ranks(plan_name: str, tools: Tools, *, for_job: bool) -> None:
    """Ends the plan's ranks: two jobs must not share the servers. Ranks of others are told.

    for_job: whether ranks are about to be started there. Raises LaunchFailed where a server cannot
    be looked at, or, for a job, where others' ranks run; JobFailed where a rank does not end.
    """
    own, others = of_plan(await left_ranks(tools.launcher), plan_name)
    told = about_others(others)
    if told and for_job:
        raise LaunchFailed(
            f"other ranks run on servers of this plan, and nothing was changed: {'; '.join(told)}",
            where=", ".join(dict.fromkeys(rank.server for rank in others)),
            remedy="apply the plan once they have ended",
        )
    for line in told:
        tools.show.say(line)
    await _end(own, tools)


async def end_left_ranks_or_say(plan_name: str, tools: Tools) -> None:
    """As `end_left_ranks`, for what must go on beside ranks that do not end: they are told. A
    server that cannot be looked at is named and passed over."""
    try:
        found: Sequence[RunningProgram] = await left_ranks(tools.launcher)
    except LaunchFailed as problem:
        found = problem.found
        tools.show.say(
            f"could not look for ranks that still run: {problem}; they end with their lease"
        )
    own, others = of_plan(found, plan_name)
    for line in about_others(others):
        tools.show.say(line)
    try:
        await _end(own, tools)
    except LaunchFailed as problem:
        tools.show.say(f"could not end ranks that still run: {problem}; they end with their lease")
    except JobFailed as problem:
        tools.show.say(
            f"{problem.what}; this goes on beside them, and what does not end with its lease is "
            "to be ended by hand"
        )


async def left_ranks(launcher: Launcher) -> Sequence[RunningProgram]:
    """The ranks on the plan's servers, of whatever plan. Raises LaunchFailed, with those that were
    found, where a server cannot be looked at, or does not answer in time."""
    return await abandonable(launcher.left)


async def _end(ranks: Sequence[RunningProgram], tools: Tools) -> None:
    if ranks:
        if meaning_of_interrupt() == NOTHING_CHANGED:  # A decision may have been ended before.
            interrupt_means(_ENDING_RANKS)
        tools.show.say(
            f"ranks of a job whose controller is gone still run; ending them: {where(ranks)}"
        )
        await abandonable(partial(tools.launcher.end_left, ranks))
