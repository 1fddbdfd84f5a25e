"""Only a plan's own ranks are ended for it, and nobody waits for servers that do not answer."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from placewire.controller.agents.agents import Agents
from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.launcher import NoLauncher, RunningProgram
from placewire.controller.launch.of_plans import about_others, of_plan
from placewire.controller.records.journal import Journal
from placewire.controller.show.story import Show
from placewire.controller.story.left_ranks import end_left_ranks, end_left_ranks_or_say
from placewire.controller.story.tools import Tools
from placewire.controller.uninterruptible import (
    NOTHING_CHANGED,
    interrupt_means,
    meaning_of_interrupt,
)

OWN = RunningProgram("s1", 11, 9.0, "a", plan="mine")
OTHER = RunningProgram("s1", 12, 9.0, "b", plan="theirs")
FORMER = RunningProgram("s2", 13, 9.0, "c")


class Ranks(NoLauncher):
    """problem: why not every server could be looked at."""

    def __init__(self, *ranks: RunningProgram, problem: str = "") -> None:
        super().__init__()
        self.ranks, self.problem, self.ended = ranks, problem, [*ranks[:0]]

    def left(self) -> tuple[RunningProgram, ...]:
        if self.problem:
            raise LaunchFailed(self.problem, where="s3", remedy="x", found=self.ranks)
        return self.ranks

    def end_left(self, ranks: Sequence[RunningProgram]) -> None:
        self.ended += ranks


def tools(launcher: NoLauncher) -> Tools:
    show = Show()
    show.console.file = io.StringIO()
    return Tools(cast(Agents, None), cast(Journal, None), launcher, Path(), Path(), show)


def said(of: Tools) -> str:
    return " ".join(cast(io.StringIO, of.show.console.file).getvalue().split())


def test_only_ranks_that_say_that_they_are_the_plan_s_are_its_own() -> None:
    assert of_plan([OWN, OTHER, FORMER], "mine") == ((OWN,), (OTHER, FORMER))
    unknown, theirs = about_others([OTHER, FORMER])
    assert "plan 'theirs' run on s1 (pid 12)" in theirs and "`controller destroy`" in theirs
    assert "a former release started run on s2 (pid 13)" in unknown and "`kill PID`" in unknown


def test_others_are_told_and_left_alone() -> None:
    launcher = Ranks(OWN, OTHER, FORMER)
    of = tools(launcher)
    asyncio.run(end_left_ranks_or_say("mine", of))
    assert launcher.ended == [OWN]
    assert "plan 'theirs' run on s1 (pid 12)" in said(of) and "ending them: s1 (pid 11)" in said(of)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NOTHING_CHANGED, f"{NOTHING_CHANGED}; ranks that were told to end do so"),
        ("decision 4 is ended", "decision 4 is ended"),
    ],
)
def test_an_interrupt_means_what_was_changed_before(before: str, after: str) -> None:
    interrupt_means(before)
    try:
        asyncio.run(end_left_ranks_or_say("mine", tools(Ranks(OWN))))
        assert meaning_of_interrupt() == after
    finally:
        interrupt_means("")


@pytest.mark.parametrize("other", [OTHER, FORMER])
def test_no_job_begins_beside_others(other: RunningProgram) -> None:
    launcher = Ranks(OWN, other)
    with pytest.raises(LaunchFailed, match="nothing was changed") as caught:
        asyncio.run(end_left_ranks("mine", tools(launcher), for_job=True))
    assert launcher.ended == [] and caught.value.where == other.server
    asyncio.run(end_left_ranks("mine", tools(launcher), for_job=False))
    assert launcher.ended == [OWN]


def test_a_server_that_cannot_be_looked_at_is_named_and_passed_over() -> None:
    launcher = Ranks(OWN, problem="SSH cannot be reached")
    of = tools(launcher)
    asyncio.run(end_left_ranks_or_say("mine", of))
    assert launcher.ended == [OWN] and "s3: SSH cannot be reached" in said(of)
    with pytest.raises(LaunchFailed, match="cannot be reached"):
        asyncio.run(end_left_ranks("mine", tools(launcher), for_job=False))


class Silent(NoLauncher):
    """Its servers do not answer until the test has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def left(self) -> tuple[RunningProgram, ...]:
        self.asked.set()
        self.goes_on.wait()
        return ()


def test_an_interrupt_does_not_wait_for_servers_that_do_not_answer() -> None:
    launcher = Silent()

    async def interrupted() -> None:
        task = asyncio.create_task(end_left_ranks_or_say("mine", tools(launcher)))
        await asyncio.to_thread(launcher.asked.wait)
        task.cancel()
        await task

    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(interrupted())
    finally:
        launcher.goes_on.set()
