"""Tests a change over many servers with simulated agents that answer, refuse, or fall silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import placewire.controller.change.change as change_module
from placewire.agent.contract.messages import Commit, Observe, Renew, Restore, Stage
from placewire.agent.contract.state import ApplyReport, DesiredState, LeaseState, Refusal
from placewire.controller.agent_advice import AGENT, AGENT_UNIT
from placewire.controller.change.change import NetworkChange
from placewire.controller.errors import (
    AgentProblem,
    AgentRefused,
    AgentUnreachable,
    JobFailed,
    JournalFailed,
    RestoreFailed,
)
from placewire.controller.records.journal import Journal
from tests.paths import ROOT

Answer = Callable[[str, Any], Any]


class ToldAgents:
    """answer(server, request): returns a reply or raises an AgentProblem. asked: all requests."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[tuple[str, Any]] = []

    async def ask_all(
        self, requests: Mapping[str, Any], reply_type: type, timeout_seconds: float
    ) -> dict[str, Any]:
        await asyncio.sleep(0)
        answered, problem = {}, None
        for server, request in requests.items():
            self.asked.append((server, request))
            try:
                answered[server] = self._answer(server, request)
            except AgentProblem as error:
                problem = error
        if problem is not None:
            problem.answered = answered
            raise problem
        return answered

    def count(self, kind: type) -> int:
        return sum(isinstance(request, kind) for _, request in self.asked)


def answer(server: str, request: Any) -> Any:
    if isinstance(request, Observe):  # of an observation, only the lease is read
        return SimpleNamespace(lease=LeaseState(phase="idle", generation=0))
    if isinstance(request, Stage | Restore):
        generation = request.desired.generation if isinstance(request, Stage) else 0
        return ApplyReport(
            server=server, generation=generation, changes=(), succeeded=True, wall_seconds=0.1
        )
    return LeaseState(phase="committed", generation=request.generation)


def states() -> dict[str, DesiredState]:
    return {
        name: DesiredState(server=name, plan_name="p", plan_digest="d", generation=3)
        for name in ("s1", "s2")
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_module, "_RENEW_SECONDS", 0.02)
    monkeypatch.setattr(change_module, "_RESTORE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(change_module, "_RESTORE_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(change_module, "LEASE_SECONDS", 0.2)


def phases(journal: Journal) -> list[str]:
    return [phase.name for phase in journal.decisions()[-1].phases]


async def test_what_is_not_kept_is_restored(tmp_path: Path) -> None:
    agents = ToldAgents(answer)
    with Journal.open(tmp_path) as journal:
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            await change.commit()
        assert agents.count(Restore) == 2
        assert phases(journal)[-1] == "restored"


async def test_what_is_kept_stays_and_has_no_lease(tmp_path: Path) -> None:
    agents = ToldAgents(answer)
    with Journal.open(tmp_path) as journal:
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            await change.keep()
        assert agents.count(Restore) == 0
        leases = [r.lease_seconds for _, r in agents.asked if isinstance(r, Commit)]
        assert leases == [None, None]
        # The journal knows of the keep before any server does.
        assert phases(journal)[-2:] == ["keep decided", "kept"]


async def test_a_server_that_cannot_stage_restores_all(tmp_path: Path) -> None:
    def told(server: str, request: Any) -> Any:
        reply = answer(server, request)
        if server == "s2" and isinstance(request, Stage):
            refusal = Refusal(what="no such NIC", where="nic0", remedy="look")
            return reply.model_copy(update={"succeeded": False, "refusals": (refusal,)})
        return reply

    agents = ToldAgents(told)
    with Journal.open(tmp_path) as journal, pytest.raises(AgentRefused, match="no such NIC"):
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
    assert agents.count(Restore) == 2


async def test_a_server_that_fails_without_a_reason_ends_the_change_in_order(
    tmp_path: Path,
) -> None:
    def silent_about_it(server: str, request: Any) -> Any:
        if isinstance(request, Stage) and server == "s2":
            return answer(server, request).model_copy(update={"succeeded": False})
        return answer(server, request)

    with Journal.open(tmp_path) as journal:
        agents = ToldAgents(silent_about_it)
        with pytest.raises(AgentRefused, match="not why") as refused:
            async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
                await change.stage()
        assert refused.value.where == "s2" and AGENT_UNIT in refused.value.remedy
        assert agents.count(Restore) == len(states())


async def test_leases_count_from_the_moment_of_asking_and_are_renewed_once_the_last_has_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s1 stages at once, and counts from then on while s2 takes nearly all of its time."""
    lease_seconds, slowest_seconds = 600.0, 590.0
    monkeypatch.setattr(change_module, "LEASE_SECONDS", lease_seconds)
    monkeypatch.setattr(change_module, "_RENEW_SECONDS", 20.0)
    clock, passed = time.clock_gettime, [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + passed[0])
    ends: dict[str, float] = {}

    def told(server: str, request: Any) -> Any:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if isinstance(request, Stage):
            if server == "s2":
                passed[0] += slowest_seconds
                now += slowest_seconds
            ends[server] = now + request.lease_seconds
        elif isinstance(request, Renew):
            assert now < ends[server], f"{server} has restored itself"
            ends[server] = now + request.lease_seconds
        return answer(server, request)

    agents: Any = ToldAgents(told)
    with Journal.open(tmp_path) as journal:
        async with NetworkChange(agents, journal, states()) as change:
            await change.stage()
            assert change.held_seconds <= ends["s1"] - time.clock_gettime(time.CLOCK_BOOTTIME)
            await asyncio.wait_for(until(lambda: agents.count(Renew) >= len(states())), 10)
            assert change.held_seconds > lease_seconds - 60


async def until(happened: Callable[[], bool]) -> None:
    while not happened():
        await asyncio.sleep(0.01)


async def test_a_missed_renewal_is_no_lost_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_module, "LEASE_SECONDS", 600.0)
    missed: list[str] = []

    def told(server: str, request: Any) -> Any:
        if isinstance(request, Renew) and not missed:
            missed.append(server)
            raise AgentUnreachable([server])
        return answer(server, request)

    agents = ToldAgents(told)

    async def work() -> str:
        while agents.count(Renew) <= 4:
            await asyncio.sleep(0.01)
        return "done"

    with Journal.open(tmp_path) as journal:
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            assert await change.while_held(work()) == "done"
    assert missed


async def test_a_missed_renewal_is_soon_repeated_where_a_lease_has_little_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after staging, or after a stall of this machine."""
    monkeypatch.setattr(change_module, "LEASE_SECONDS", 10_000.0)
    monkeypatch.setattr(change_module, "_RENEW_SECONDS", 2000.0)
    monkeypatch.setattr(change_module, "_HURRIED_PAUSE_SECONDS", 0.02)
    clock, passed = time.clock_gettime, [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + passed[0])

    def told(server: str, request: Any) -> Any:
        if isinstance(request, Renew) and server == "s2" and not passed[0]:
            passed[0] = 7000.0
            raise AgentUnreachable([server])
        return answer(server, request)

    agents: Any = ToldAgents(told)
    with Journal.open(tmp_path) as journal:
        async with NetworkChange(agents, journal, states()) as change:
            await change.stage()
            await asyncio.wait_for(until(lambda: agents.count(Renew) > len(states())), 300)
            await change.while_held(until(lambda: change.held_seconds > 9000))


async def test_a_lease_runs_out_while_the_controller_s_machine_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its servers count it. Once it is awake and they do not answer, nothing is held."""
    monkeypatch.setattr(change_module, "LEASE_SECONDS", 600.0)
    clock, slept = time.clock_gettime, [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + slept[0])

    def told(server: str, request: Any) -> Any:
        if isinstance(request, Renew) and slept[0]:
            raise AgentUnreachable([server])
        return answer(server, request)

    agents = ToldAgents(told)
    with Journal.open(tmp_path) as journal, pytest.raises(AgentUnreachable):
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            await change.commit()
            assert change.held_seconds > 500
            slept[0] = 3600.0
            assert change.held_seconds == 0
            await asyncio.wait_for(change.while_held(asyncio.sleep(600)), 60)


@pytest.mark.parametrize("how", ["silent", "refused"])
async def test_a_lost_lease_ends_the_work_at_once(tmp_path: Path, how: str) -> None:
    def told(server: str, request: Any) -> Any:
        if isinstance(request, Renew) and server == "s2":
            if how == "silent":
                raise AgentUnreachable([server])
            raise AgentRefused(server, Refusal(what="no lease", where="lease", remedy=""))
        return answer(server, request)

    agents = ToldAgents(told)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with Journal.open(tmp_path) as journal, pytest.raises(AgentProblem):
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            await asyncio.wait_for(change.while_held(work()), 60)
    assert ended == ["cancelled"]
    assert agents.count(Restore) == 2


async def test_after_a_lost_lease_the_others_are_renewed_until_the_work_has_ended(
    tmp_path: Path,
) -> None:
    """A script may still save over the network of the other servers."""

    def told(server: str, request: Any) -> Any:
        if isinstance(request, Renew) and server == "s2":
            raise AgentRefused(server, Refusal(what="no lease", where="lease", remedy=""))
        return answer(server, request)

    def renewals() -> int:
        return sum(isinstance(r, Renew) and server == "s1" for server, r in agents.asked)

    agents, renewed = ToldAgents(told), False

    async def work() -> None:
        nonlocal renewed
        try:
            await asyncio.sleep(600)
        finally:
            before, deadline = renewals(), time.monotonic() + 60
            while not renewed and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
                renewed = renewals() >= before + 3

    with Journal.open(tmp_path) as journal, pytest.raises(AgentRefused, match="no lease"):
        async with NetworkChange(cast(Any, agents), journal, states()) as change:
            await change.stage()
            await change.while_held(work())
    assert renewed


async def test_an_interrupt_while_staging_restores(tmp_path: Path) -> None:
    agents = ToldAgents(answer)
    staged = asyncio.Event()

    async def story(journal: Journal) -> None:
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            staged.set()
            await asyncio.sleep(60)

    with Journal.open(tmp_path) as journal:
        task = asyncio.create_task(story(journal))
        await staged.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert agents.count(Restore) == 2 and phases(journal)[-1] == "restored"


class SlowToRestore(ToldAgents):
    """restoring: set when the first Restore is under way."""

    def __init__(self) -> None:
        super().__init__(answer)
        self.restoring = asyncio.Event()

    async def ask_all(
        self, requests: Mapping[str, Any], reply_type: type, timeout_seconds: float
    ) -> dict[str, Any]:
        if isinstance(next(iter(requests.values())), Restore):
            self.restoring.set()
            await asyncio.sleep(0.1)
        return await super().ask_all(requests, reply_type, timeout_seconds)


@pytest.mark.parametrize("failing", [False, True])
async def test_an_interrupt_while_restoring_changes_nothing_of_its_end(
    tmp_path: Path, failing: bool
) -> None:
    agents = SlowToRestore()

    async def story(journal: Journal) -> str:
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            if failing:
                raise JobFailed("rank 0 ended with 1", where="s1")
        return "reported"

    with Journal.open(tmp_path) as journal:
        task = asyncio.create_task(story(journal))
        await agents.restoring.wait()
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, JobFailed) if failing else ended == "reported"
        assert agents.count(Restore) == 2 and phases(journal)[-1] == "restored"


async def test_an_interrupt_waits_for_what_a_lost_lease_ends(tmp_path: Path) -> None:
    def told(server: str, request: Any) -> Any:
        if isinstance(request, Renew):
            raise AgentRefused(server, Refusal(what="no lease", where="", remedy="apply again"))
        return answer(server, request)

    agents, ending, ended = ToldAgents(told), asyncio.Event(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ending.set()
            await asyncio.sleep(0.1)
            ended.append(agents.count(Restore))

    async def story(journal: Journal) -> None:
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            await change.while_held(work())

    with Journal.open(tmp_path) as journal:
        task = asyncio.create_task(story(journal))
        await ending.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert ended == [0] and agents.count(Restore) == 2, "restored beside work that still ran"


async def test_a_journal_that_cannot_be_written_hides_no_end(tmp_path: Path) -> None:
    def told(server: str, request: Any) -> Any:
        if server == "s2" and isinstance(request, Restore):
            raise AgentUnreachable(["s2"])
        return answer(server, request)

    with Journal.open(tmp_path) as journal, pytest.raises(RestoreFailed) as raised:
        async with NetworkChange(ToldAgents(told), journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            journal.decide = full  # type: ignore[method-assign]
    assert raised.value.where == "s2"


def full(*_: Any, **__: Any) -> None:
    raise JournalFailed("database or disk is full")


async def test_an_agent_that_is_silent_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_module, "_RESTORE_TIMEOUT_SECONDS", 60.0)
    silent = [True, True, True]

    def told(server: str, request: Any) -> Any:
        if isinstance(request, Restore) and server == "s1" and silent:
            silent.pop()
            raise AgentUnreachable([server])
        return answer(server, request)

    agents = ToldAgents(told)
    with Journal.open(tmp_path) as journal:
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
        assert phases(journal)[-1] == "restored"
    # The server that had answered is not asked again.
    assert sum(s == "s2" for s, r in agents.asked if isinstance(r, Restore)) == 1


@pytest.mark.parametrize("keeping", [False, True])
async def test_what_is_left_is_said_truly(tmp_path: Path, keeping: bool) -> None:
    def told(server: str, request: Any) -> Any:
        if server == "s2" and isinstance(request, Restore | Commit):
            raise AgentUnreachable(["s2"])
        return answer(server, request)

    agents = ToldAgents(told)
    with Journal.open(tmp_path) as journal, pytest.raises(RestoreFailed) as raised:
        async with NetworkChange(agents, journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
            if keeping:
                await change.keep()
    assert raised.value.exit_code == 8 and raised.value.where == "s2"
    words = "run `controller recover`" if keeping else "when the lease ends"
    assert words in raised.value.remedy


async def test_restoring_by_hand_is_advised_so_that_it_works(tmp_path: Path) -> None:
    """`agent restore` is refused while the daemon runs, and systemd restarts a daemon that ends."""

    def told(server: str, request: Any) -> Any:
        report = answer(server, request)
        if server == "s2" and isinstance(request, Restore):
            left = Refusal(what="nic0 is still in pw-nic0", where="nic0", remedy="look")
            return report.model_copy(update={"succeeded": False, "refusals": (left,)})
        return report

    with Journal.open(tmp_path) as journal, pytest.raises(RestoreFailed) as raised:
        async with NetworkChange(ToldAgents(told), journal, states()) as change:  # type: ignore[arg-type]
            await change.stage()
    assert "nic0 is still in pw-nic0" in raised.value.what
    advice = raised.value.remedy
    stop, restore, start = (
        advice.index(f"`{words}`")
        for words in (
            f"systemctl stop {AGENT_UNIT}",
            f"{AGENT} restore",
            f"systemctl start {AGENT_UNIT}",
        )
    )
    assert "on s2" in advice and stop < restore < start
    unit = ROOT / "deploy" / f"{AGENT_UNIT}.service"
    assert "Restart=always" in unit.read_text()
