"""One change over many servers: stage everywhere under a lease, then keep it or undo it everywhere.

The journal holds the decision; the agents hold the leases. Whatever ends the change early — an
error, an interrupt, this process being killed — no server stays changed: either we restore it here,
or its lease runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from agent.contract.messages import Commit, Previewed, Renew, Restore, Stage
from agent.contract.messages import Preview as PreviewRequest
from agent.contract.state import ApplyReport, DesiredState, LeaseState
from controller.errors import AgentProblem, AgentRefused, PlacewireError, RestoreFailed

if TYPE_CHECKING:
    from controller.agents import Agents
    from controller.journal import Journal

# Long enough to survive a stall of a busy machine, short enough that a dead controller's half-made
# change is gone within half a minute.
LEASE_SECONDS = 30.0
_RENEW_SECONDS = 6.0
_STAGE_TIMEOUT_SECONDS = 60.0
_RESTORE_TIMEOUT_SECONDS = 40.0


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

    changes: number of changes that staging made, by server.
    """

    def __init__(
        self, agents: Agents, journal: Journal, desired: Mapping[str, DesiredState]
    ) -> None:
        self._agents, self._journal, self._desired = agents, journal, desired
        self._generation = {server: state.generation for server, state in desired.items()}
        self._renewing: asyncio.Task[None] | None = None
        self._decision: int | None = None
        self._kept = False
        self.changes: dict[str, int] = {}
        self.lost_lease: PlacewireError | None = None

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
            if not report.verified:
                raise AgentRefused(server, report.refusals[0])
        self.changes = {server: len(report.changes) for server, report in reports.items()}
        self._renewing = asyncio.create_task(self._renew())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self._decision is not None and (not self._kept or error is not None):
            # Shielded: an interrupt must not stop the undoing that it asked for.
            await asyncio.shield(asyncio.create_task(self._restore_all(self._decision, error)))

    async def commit(self) -> None:
        """Decided: the change stands until this controller restores it or stops renewing."""
        await self._ask_lease(LEASE_SECONDS)
        self._record("committed")

    async def keep(self) -> None:
        """The change stands without a lease, until it is destroyed or replaced."""
        await self._ask_lease(None)
        self._kept = True
        self._record("kept")

    def _record(self, phase: str) -> None:
        assert self._decision is not None, "staged first"
        self._journal.decide(self._decision, phase)

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
        """A server whose lease cannot be renewed goes back by itself; the caller learns of it."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await self._agents.ask_all(
                    {
                        server: Renew(generation=generation, lease_seconds=LEASE_SECONDS)
                        for server, generation in self._generation.items()
                    },
                    LeaseState,
                    timeout_seconds=_RENEW_SECONDS,
                )
            except AgentProblem as problem:
                self.lost_lease = problem

    async def _restore_all(self, decision: int, cause: BaseException | None) -> None:
        """Says what is left, if anything is."""
        try:
            reports = await self._agents.ask_all(
                {server: Restore(generation=g) for server, g in self._generation.items()},
                ApplyReport,
                timeout_seconds=_RESTORE_TIMEOUT_SECONDS,
            )
        except AgentProblem as problem:
            self._journal.decide(decision, "restore incomplete", detail=str(problem))
            raise RestoreFailed(
                f"not every server confirmed that it is back on its former state: {problem.what}",
                where=problem.where,
                remedy=f"a server that runs restores itself within {LEASE_SECONDS:.0f} s when its "
                "lease ends; look at it with `controller status`",
            ) from cause
        left = [server for server, report in reports.items() if not report.verified]
        if left:
            self._journal.decide(decision, "restore failed", detail=", ".join(left))
            detail = "; ".join(r.what for server in left for r in reports[server].refusals)
            raise RestoreFailed(
                f"restoring left something behind: {detail}",
                where=", ".join(left),
                remedy="run `agent restore` there, then `agent status`",
            ) from cause
        self._journal.decide(decision, "restored")
