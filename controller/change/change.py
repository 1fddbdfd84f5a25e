"""One change over many servers: stages it under leases, then keeps or restores it everywhere.

The journal holds the decision; the agents hold the leases. Whatever ends the change early (an
error, an interrupt, the death of this process), no server stays changed: this process restores it,
or its lease runs out and the agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from placewire.agent.contract.messages import Commit, Previewed, Renew, Restore, Stage
from placewire.agent.contract.messages import Preview as PreviewRequest
from placewire.agent.contract.state import (
    ApplyReport,
    Change,
    DesiredState,
    LeaseState,
    Refusal,
    refuse,
)
from placewire.controller.agent_advice import look_into_logs, restore_by_hand
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.boot_clock import boot_seconds
from placewire.controller.change.not_restored import remedies
from placewire.controller.errors import (
    AgentProblem,
    AgentRefused,
    RestoreFailed,
)
from placewire.controller.records.journal import Journal
from placewire.controller.uninterruptible import interrupt_means, uninterruptible

# Long enough to survive a stall of a busy machine, short enough that the half-made change of a dead
# controller is gone within half a minute.
LEASE_SECONDS = 30.0
_RENEW_SECONDS = 6.0
# The least number of renewals within a lease: one may fail, and another may time out.
_RENEWALS = 5
# After a failed renewal, where a lease has no time for many more.
_HURRIED_PAUSE_SECONDS = 1.0
# Less than the lease, so that no server restores itself before the last one has staged.
_STAGE_TIMEOUT_SECONDS = 24.0
# For this long restoring is requested again and again, in case an agent is silent for a moment.
_RESTORE_TIMEOUT_SECONDS = 40.0
_RESTORE_PAUSE_SECONDS = 0.5

Result = TypeVar("Result")


async def preview(agents: Agents, desired: Mapping[str, DesiredState]) -> dict[str, Previewed]:
    """By server, what staging would change. Raises AgentRefused where a server would refuse it."""
    requests = {server: PreviewRequest(desired=state) for server, state in desired.items()}
    answers = await agents.ask_all(requests, Previewed, timeout_seconds=20)
    for server, answer in answers.items():
        if answer.refusals:
            raise AgentRefused(server, answer.refusals[0])
    return answers


class NetworkChange:
    """`async with NetworkChange(...) as change:`, then stage, commit and perhaps keep. Leaving the
    block without `keep`, or with an error, restores every server.

    lease_seconds: the lease once the change is committed; before that it is LEASE_SECONDS.
    away: states of servers that are out of reach. They are not staged, but the decision is theirs,
    too: the journal has it as kept only once `recover` has brought it to them.
    made: by server, the changes that staging made.
    """

    def __init__(
        self,
        agents: Agents,
        journal: Journal,
        desired: Mapping[str, DesiredState],
        *,
        lease_seconds: float | None = None,
        away: Mapping[str, DesiredState] = MappingProxyType({}),
    ) -> None:
        self._agents, self._journal, self._desired = agents, journal, desired
        self._away = away
        self._generation = {server: state.generation for server, state in desired.items()}
        self._lease_seconds = LEASE_SECONDS
        self._committed_seconds = lease_seconds or LEASE_SECONDS
        self._renewing: asyncio.Task[None] | None = None
        self._held_until: dict[str, float] = {}
        self._lost: asyncio.Future[AgentProblem] = asyncio.get_running_loop().create_future()
        self._decision: int | None = None
        self._keeping = self._kept = False
        self.made: dict[str, tuple[Change, ...]] = {}

    @property
    def decision(self) -> int:
        """The decision's number in the journal, once it is staged."""
        assert self._decision is not None, "staged first"
        return self._decision

    @property
    def changes(self) -> dict[str, int]:
        """By server, how many changes staging made."""
        return {server: len(changes) for server, changes in self.made.items()}

    async def __aenter__(self) -> NetworkChange:
        return self

    async def stage(self) -> None:
        """Every server applies its state and reads it back, under a lease that is then renewed."""
        interrupt_means("putting every server back on its former state")
        first = next(iter(self._desired.values()))
        self._decision = self._journal.begin(first.plan_name, first.plan_digest, self._generation)
        requests = {
            server: Stage(desired=state, lease_seconds=LEASE_SECONDS)
            for server, state in self._desired.items()
        }
        # An agent counts from its own staging, which may have ended long before the last one's.
        asked = boot_seconds()
        reports = await self._agents.ask_all(requests, ApplyReport, _STAGE_TIMEOUT_SECONDS)
        for server, report in reports.items():
            if not report.succeeded:
                look = look_into_logs([server])
                no_reason = refuse("", "it says that it failed, and not why", look)
                raise AgentRefused(server, next(iter(report.refusals), no_reason))
        self.made = {server: report.changes for server, report in reports.items()}
        self._held_until = dict.fromkeys(reports, asked + LEASE_SECONDS)
        self._renewing = asyncio.create_task(self._renew())

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # An interrupt while this ends must not replace the error that the block ends with.
        with contextlib.suppress(asyncio.CancelledError):
            await uninterruptible(self._end(error))

    async def _end(self, error: BaseException | None) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        if self._decision is not None and (not self._kept or error is not None):
            await self._restore_all(error)
            interrupt_means("every server is back on its former state")

    async def while_held(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of the work. If a lease is lost, cancels the work and raises the AgentProblem:
        nothing may be measured or run on a network that is no longer as it was staged."""
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._lost}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                raise self._lost.result()
            return task.result()
        finally:
            task.cancel()
            await uninterruptible(asyncio.wait({task}))

    async def commit(self) -> None:
        """The change stands until this controller restores it or stops renewing the leases."""
        self._lease_seconds = self._committed_seconds
        asked = boot_seconds()
        await self._ask_lease(self._lease_seconds)
        self._held_until = dict.fromkeys(self._generation, asked + self._lease_seconds)
        self._journal.decide(self.decision, "committed")

    @property
    def held_seconds(self) -> float:
        """For how long from now every server keeps the change if nobody renews the leases: by the
        clock by which agents count, as leases go on while this machine sleeps."""
        return max(0.0, min(self._held_until.values(), default=0.0) - boot_seconds())

    async def keep(self) -> None:
        """The change stands without a lease, until it is destroyed or replaced."""
        # The journal is written first, so that it knows of a `keep` that only some servers heard.
        states = {**self._desired, **self._away}
        self._journal.keep(self.decision, {s: one.model_dump_json() for s, one in states.items()})
        self._keeping = True
        await self._ask_lease(None)
        self._kept = True
        interrupt_means("the new network is kept on every server")
        if not self._away:
            self._note("kept")

    def _note(self, phase: str, detail: str = "") -> None:
        """Where the journal has none of this, `recover` does once more what was done, which changes
        nothing."""
        self._journal.note(self.decision, phase, detail=detail)

    async def _ask_lease(self, lease_seconds: float | None) -> None:
        requests = {
            server: Commit(generation=generation, lease_seconds=lease_seconds)
            for server, generation in self._generation.items()
        }
        await self._agents.ask_all(requests, LeaseState, timeout_seconds=10)

    async def _renew(self) -> None:
        """Renews the leases at once, as staging may have used up most of their time, and then again
        and again. A single renewal may fail; a lease is lost when its time is over by this
        machine's clock, or when a server refuses to renew it. The others are renewed all the same,
        up to the end: the work may take a while to end on their network."""
        while True:
            pause = rest = min(_RENEW_SECONDS, self._lease_seconds / _RENEWALS)
            asked, lease_seconds = boot_seconds(), self._lease_seconds
            requests = {
                server: Renew(generation=generation, lease_seconds=lease_seconds)
                for server, generation in self._generation.items()
            }
            try:
                renewed: Mapping[str, Any] = await self._agents.ask_all(
                    requests, LeaseState, timeout_seconds=pause
                )
            except AgentProblem as problem:
                renewed = problem.answered
                late = [s for s, until in self._held_until.items() if until < boot_seconds()]
                is_lost = isinstance(problem, AgentRefused) or any(s not in renewed for s in late)
                if is_lost and not self._lost.done():
                    self._lost.set_result(problem)
                now = boot_seconds()
                left = [until - now for s, until in self._held_until.items() if s not in renewed]
                # What is over, or was refused, no hurry can mend.
                if not is_lost and any(0.0 <= one < 2 * pause for one in left):
                    rest = min(pause, _HURRIED_PAUSE_SECONDS)
            self._held_until |= dict.fromkeys(renewed, asked + lease_seconds)
            await asyncio.sleep(rest)

    async def _restore_all(self, cause: BaseException | None) -> None:
        """Raises RestoreFailed, which names what is left, where not every server confirms."""
        reports, problem = await self._ask_restore()
        failed = {s: r.refusals for s, r in reports.items() if not r.succeeded}
        if problem is None and not failed:
            self._note("restored")
            return
        silent = [server for server in self._generation if server not in reports]
        what = [f"{server}: {refusal.what}" for server, some in failed.items() for refusal in some]
        if problem is not None:
            what.append(f"{', '.join(silent)}: {problem.what}")
        self._note("restore failed", detail="; ".join(what))
        raise RestoreFailed(
            f"not every server is back on its former state: {'; '.join(what)}",
            where=", ".join([*failed, *silent]),
            remedy=self._remedy(failed, silent),
        ) from cause

    async def _ask_restore(self) -> tuple[dict[str, ApplyReport], AgentProblem | None]:
        """(the reports by server, the problem of the servers that sent none by the deadline)"""
        reports: dict[str, ApplyReport] = {}
        deadline = time.monotonic() + _RESTORE_TIMEOUT_SECONDS
        while True:
            waiting = {
                s: Restore(generation=g) for s, g in self._generation.items() if s not in reports
            }
            remaining = deadline - time.monotonic()
            try:
                reports |= await self._agents.ask_all(
                    waiting, ApplyReport, timeout_seconds=max(remaining, 1.0)
                )
                return reports, None
            except AgentProblem as problem:
                reports |= problem.answered
                if remaining <= 0 or isinstance(problem, AgentRefused):
                    return reports, problem
            await asyncio.sleep(_RESTORE_PAUSE_SECONDS)

    def _remedy(self, failed: Mapping[str, Sequence[Refusal]], silent: list[str]) -> str:
        advice = remedies(failed.values())
        if failed:
            advice.append(restore_by_hand(list(failed)))
        if silent and self._keeping:
            advice.append(
                f"{', '.join(silent)} may have been told to keep the new state: when reachable, "
                "run `controller recover`, which undoes it there, or `controller destroy`"
            )
        elif silent:
            advice.append(
                f"if the agent runs on {', '.join(silent)}, it restores its server within "
                f"{self._lease_seconds:.0f} s, when the lease ends; see `controller status`"
            )
        return "; ".join(advice)
