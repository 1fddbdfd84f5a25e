"""One change over many servers: stage everywhere under a lease, then keep it or undo it everywhere.

The journal holds the decision; the agents hold the leases. Whatever ends the change early — an
error, an interrupt, this process being killed — no server stays changed: either we restore it here,
or its lease runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from placewire.agent.contract.messages import Commit, Previewed, Renew, Restore, Stage
from placewire.agent.contract.messages import Preview as PreviewRequest
from placewire.agent.contract.state import ApplyReport, DesiredState, LeaseState
from placewire.controller.errors import AgentProblem, AgentRefused, RestoreFailed, restore_by_hand
from placewire.controller.uninterruptible import uninterruptible

if TYPE_CHECKING:
    from placewire.controller.agents.agents import Agents
    from placewire.controller.records.journal import Journal

# Long enough to survive a stall of a busy machine, short enough that a dead controller's half-made
# change is gone within half a minute.
LEASE_SECONDS = 30.0
_RENEW_SECONDS = 6.0
# So often within a lease, at least: one renewal may fail, and one may wait for a server in vain.
_RENEWALS = 5
# Below the lease: the first server to stage must not go back before the last one has answered.
_STAGE_TIMEOUT_SECONDS = 24.0
# Restoring is asked for again until here: an agent that is silent for a moment still goes back.
_RESTORE_TIMEOUT_SECONDS = 40.0
_RESTORE_PAUSE_SECONDS = 0.5

Result = TypeVar("Result")


async def preview(agents: Agents, desired: Mapping[str, DesiredState]) -> dict[str, Previewed]:
    """What staging would change, by server. Raises AgentRefused where a server could not do it."""
    answers = await agents.ask_all(
        {server: PreviewRequest(desired=state) for server, state in desired.items()},
        Previewed,
        timeout_seconds=20,
    )
    for server, answer in answers.items():
        if answer.refusals:
            raise AgentRefused(server, answer.refusals[0])
    return dict(answers)


class NetworkChange:
    """`async with NetworkChange(...) as change:`, then stage, commit and perhaps keep; leaving
    without `keep`, or with an error, restores every server.

    lease_seconds: of what is committed. What is only staged has a short one, so that a dead
    controller's half-made change is soon gone. changes: number of changes that staging made, by
    server.
    """

    def __init__(
        self,
        agents: Agents,
        journal: Journal,
        desired: Mapping[str, DesiredState],
        *,
        lease_seconds: float | None = None,
    ) -> None:
        self._agents, self._journal, self._desired = agents, journal, desired
        self._generation = {server: state.generation for server, state in desired.items()}
        self._lease_seconds = LEASE_SECONDS
        self._committed_seconds = lease_seconds or LEASE_SECONDS
        self._renewing: asyncio.Task[None] | None = None
        self._held_until: dict[str, float] = {}
        self._lost: asyncio.Future[AgentProblem] = asyncio.get_running_loop().create_future()
        self._decision: int | None = None
        self._keeping = self._kept = False
        self.changes: dict[str, int] = {}

    async def __aenter__(self) -> NetworkChange:
        return self

    async def stage(self) -> None:
        """Every server applies, verifies by reading back, and holds a lease that we renew."""
        first = next(iter(self._desired.values()))
        self._decision = self._journal.begin(first.plan_name, first.plan_digest, self._generation)
        reports = await self._agents.ask_all(
            {
                server: Stage(desired=state, lease_seconds=LEASE_SECONDS)
                for server, state in self._desired.items()
            },
            ApplyReport,
            timeout_seconds=_STAGE_TIMEOUT_SECONDS,
        )
        for server, report in reports.items():
            if not report.succeeded:
                raise AgentRefused(server, report.refusals[0])
        self.changes = {server: len(report.changes) for server, report in reports.items()}
        self._held_until = dict.fromkeys(reports, time.monotonic() + LEASE_SECONDS)
        self._renewing = asyncio.create_task(self._renew())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # There is nothing left to interrupt: it ends with what it would have ended with.
        with contextlib.suppress(asyncio.CancelledError):
            await uninterruptible(self._end(error))

    async def _end(self, error: BaseException | None) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        if self._decision is not None and (not self._kept or error is not None):
            await self._restore_all(error)

    async def while_held(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Its result. When a lease is lost the work is cancelled and the loss raised: nothing may
        be measured or run on a network that is no longer the one that was staged."""
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
        """Decided: the change stands until this controller restores it or stops renewing."""
        self._lease_seconds = self._committed_seconds
        asked = time.monotonic()
        await self._ask_lease(self._lease_seconds)
        self._held_until = dict.fromkeys(self._generation, asked + self._lease_seconds)
        self._record("committed")

    @property
    def held_seconds(self) -> float:
        """For how long from now every server keeps the change, should nobody renew it."""
        return max(0.0, min(self._held_until.values(), default=0.0) - time.monotonic())

    async def keep(self) -> None:
        """The change stands without a lease, until it is destroyed or replaced."""
        # First, so that the journal knows of a keep that only some servers heard.
        assert self._decision is not None, "staged first"
        self._journal.keep(
            self._decision, {s: state.model_dump_json() for s, state in self._desired.items()}
        )
        self._keeping = True
        await self._ask_lease(None)
        self._kept = True
        self._record("kept")

    def _record(self, phase: str, detail: str = "") -> None:
        assert self._decision is not None, "staged first"
        self._journal.decide(self._decision, phase, detail=detail)

    def _record_undone(self, phase: str, detail: str = "") -> None:
        """Where the journal cannot be written, what became of the servers is said all the same;
        `recover` undoes it once more, which changes nothing."""
        with contextlib.suppress(sqlite3.Error):
            self._record(phase, detail)

    async def _ask_lease(self, lease_seconds: float | None) -> None:
        await self._agents.ask_all(
            {
                server: Commit(generation=generation, lease_seconds=lease_seconds)
                for server, generation in self._generation.items()
            },
            LeaseState,
            timeout_seconds=10,
        )

    async def _renew(self) -> None:
        """A renewal may be missed; a lease is lost when it ran out here, or its server says so."""
        while not self._lost.done():
            pause = min(_RENEW_SECONDS, self._lease_seconds / _RENEWALS)
            await asyncio.sleep(pause)
            asked, lease_seconds = time.monotonic(), self._lease_seconds
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
                late = [s for s, until in self._held_until.items() if until < time.monotonic()]
                if isinstance(problem, AgentRefused) or any(s not in renewed for s in late):
                    self._lost.set_result(problem)
            self._held_until |= dict.fromkeys(renewed, asked + lease_seconds)

    async def _restore_all(self, cause: BaseException | None) -> None:
        """Until every server has confirmed, or time is up. Says what is left, if anything is."""
        reports, problem = await self._ask_restore()
        unverified = {s: r.refusals for s, r in reports.items() if not r.succeeded}
        if problem is None and not unverified:
            self._record_undone("restored")
            return
        silent = [server for server in self._generation if server not in reports]
        what = [
            f"{server}: {refusal.what}" for server, some in unverified.items() for refusal in some
        ]
        if problem is not None:
            what.append(f"{', '.join(silent)}: {problem.what}")
        self._record_undone("restore failed", detail="; ".join(what))
        raise RestoreFailed(
            f"not every server is back on its former state: {'; '.join(what)}",
            where=", ".join([*unverified, *silent]),
            remedy=self._remedy(list(unverified), silent),
        ) from cause

    async def _ask_restore(self) -> tuple[dict[str, ApplyReport], AgentProblem | None]:
        """(reports by server, why the others have none)"""
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

    def _remedy(self, unverified: list[str], silent: list[str]) -> str:
        advice = []
        if unverified:
            advice.append(restore_by_hand(unverified))
        if silent and self._keeping:
            advice.append(
                f"{', '.join(silent)} may have been told to keep the new state: when reachable, "
                "apply again or `controller destroy`"
            )
        elif silent:
            advice.append(
                f"an agent that runs on {', '.join(silent)} restores it within "
                f"{self._lease_seconds:.0f} s, when the lease ends; see `controller status`"
            )
        return "; ".join(advice)
