"""The report of a run in which ranks ran is kept, however the run or its network ended.

Deciding, measuring and the job are stood in for; the change, its agents' answers and the journal
are real.
"""

from __future__ import annotations

import asyncio
import io
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import placewire.controller.apply as apply_module
import placewire.controller.change.change as change_module
import placewire.controller.records.journal_file as journal_files
import placewire.controller.story.delivery as delivery_module
from placewire.agent.contract.messages import Commit, Observe, Previewed, Restore
from placewire.agent.contract.state import ApplyReport, LeaseState, Refusal
from placewire.controller.agents.agents import Agents
from placewire.controller.apply import apply
from placewire.controller.decide.traffic import decide_traffic
from placewire.controller.errors import (
    AgentProblem,
    AgentUnreachable,
    JournalFailed,
    RestoreFailed,
)
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.job import TorchrunJob
from placewire.controller.records.job_record import JobRecord
from placewire.controller.records.journal import Journal
from placewire.controller.records.program import ProgramRow
from placewire.controller.records.report import RunReport
from placewire.controller.show.story import Show
from placewire.controller.story.proposal import Proposal
from placewire.controller.story.tools import ApplyRequest, Tools
from placewire.job.contract.specification import Carried
from tests.controller.change.test_change import ToldAgents, answer, states
from tests.controller.plans import plan, plan_document

Told = Callable[[str, Any], Any]
LEASE = LeaseState(phase="idle", generation=0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_module, "_RESTORE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(change_module, "_RESTORE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(journal_files, "_WAIT_SECONDS", 0.05)


class Run:
    """One apply of a script. after_job: called once all ranks have ended."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.kept = folder, list[RunReport]()
        self.after_job: Callable[[], Any] = lambda: None
        document = plan_document(2)
        document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
        document["network"] = {"on_exit": "keep"}
        del document["solve"]
        self.plan = plan(document)
        assert isinstance(self.plan.job, TorchrunJob)
        decision = decide_traffic(self.plan, self.plan.job, folder)
        previewed = dict.fromkeys(states(), Previewed(changes=(), refusals=(), lease=LEASE))

        async def propose(*_: Any) -> Proposal:
            return Proposal(decision, states(), previewed)

        async def nothing(*_: Any, **__: Any) -> tuple[()]:
            return ()

        async def run_job(_: Any, __: Any, ___: Any, ____: Any, told: JobRecord, nics: Any) -> None:
            told.add(Carried(rank=0, seconds=9.0, sent_bytes={"a": 2**24, "b": 2**24}))
            self.after_job()
            await asyncio.sleep(0)

        for name, stand_in in (
            ("propose", propose), ("end_left_ranks", nothing), ("delivered", nothing),
            ("run_job", run_job),
        ):  # fmt: skip
            monkeypatch.setattr(apply_module, name, stand_in)

    async def apply(self, journal: Journal, told: Told = answer) -> RunReport:
        show = Show()
        show.console.file = self.shown = io.StringIO()
        agents = cast(Agents, ToldAgents(told))
        tools = Tools(agents, journal, NoLauncher(), self.folder, self.folder, show)

        async def yes() -> bool:
            return True

        request = ApplyRequest(self.plan, self.folder / "plan.yaml", False, yes)
        return await apply(request, tools, self.kept.append)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "state") as opened:
        yield opened


async def test_a_run_that_ends_well_is_kept_once(run: Run, journal: Journal) -> None:
    report = await run.apply(journal)
    assert run.kept == [report] and (report.failure, report.network) == (None, "kept")
    script = run.plan.job.program
    assert script.endswith("examples/ddp.py")
    assert report.program == ProgramRow(kind="script", name=script)


async def test_a_journal_that_is_held_undoes_the_network_and_loses_no_report(
    run: Run, journal: Journal, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "state" / "journal.sqlite3")) as other:
        run.after_job = lambda: other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalFailed, match="locked"):
            await run.apply(journal)
    (report,) = run.kept
    assert report.failure is not None and "locked" in report.failure.what
    assert report.network == "restored" and len(report.rails) == 2
    assert "What each NIC sent" in run.shown.getvalue()


async def test_a_network_that_cannot_be_restored_loses_no_report(
    run: Run, journal: Journal
) -> None:
    def told(server: str, request: Any) -> Any:
        keeps = isinstance(request, Commit) and request.lease_seconds is None
        if server == "s2" and (keeps or isinstance(request, Restore)):
            raise AgentUnreachable([server])
        return answer(server, request)

    with pytest.raises(RestoreFailed):
        await run.apply(journal, told)
    assert [report.network for report in run.kept] == ["not restored"]


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_what_an_undo_left_otherwise_is_in_the_report(
    run: Run, journal: Journal, ends: str
) -> None:
    """As a NIC that stays up because others use it by now: not all is as it was before."""
    network = run.plan.network.model_copy(update={"on_exit": "restore"})
    run.plan = run.plan.model_copy(update={"network": network})
    undone, what = list[str](), "NIC nic0 was left up on 2026-11-26"

    def told(server: str, request: Any) -> Any:
        if isinstance(request, Restore):
            undone.append(server)
        elif isinstance(request, Observe) and server == "s2" and server in undone:
            return SimpleNamespace(lease=LEASE.model_copy(update={"detail": what}))
        return answer(server, request)

    if ends == "badly":
        running = asyncio.create_task(run.apply(journal, told))
        run.after_job = running.cancel
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        await run.apply(journal, told)
    (report,) = run.kept
    said = " ".join(run.shown.getvalue().split())
    assert report.notes == (f"not as it was before: s2: {what}",) and what in said
    assert ends == "badly" or "former state, read back, but for what is told above" in said


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_no_agent_s_words_are_too_long_for_a_report(
    run: Run, journal: Journal, ends: str
) -> None:
    """A run that had come to its end ended with a traceback, and its report was lost."""
    longest = "k" * 1_000_000
    refused = ApplyReport(
        server="s2", generation=3, changes=(), succeeded=False, wall_seconds=0.1,
        refusals=(Refusal(what=longest, where=longest, remedy=longest),),
    )  # fmt: skip
    if ends == "badly":
        network = run.plan.network.model_copy(update={"on_exit": "restore"})
        run.plan = run.plan.model_copy(update={"network": network})

    def told(server: str, request: Any) -> Any:
        if isinstance(request, Observe):
            return SimpleNamespace(lease=LEASE.model_copy(update={"detail": longest}))
        if server == "s2" and isinstance(request, Restore):
            return refused
        return answer(server, request)

    if ends == "badly":
        with pytest.raises(RestoreFailed):
            await run.apply(journal, told)
    else:
        await run.apply(journal, told)
    (report,) = run.kept
    assert len(report.notes) == 2 and all(len(note) < 20_000 for note in report.notes)
    assert ends == "well" or (report.failure is not None and report.network == "not restored")


async def test_a_report_that_cannot_be_made_hides_no_failure(
    run: Run, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(server: str, request: Any) -> Any:
        keeps = isinstance(request, Commit) and request.lease_seconds is None
        if server == "s2" and (keeps or isinstance(request, Restore)):
            raise AgentUnreachable([server])
        return answer(server, request)

    def broken(*_: Any) -> Any:
        raise KeyError("rail zz")

    monkeypatch.setattr(apply_module, "make_report", broken)
    with pytest.raises(RestoreFailed) as raised:
        await run.apply(journal, told)
    assert raised.value.exit_code == 8
    assert "rail zz" in run.shown.getvalue()


async def test_an_interrupted_run_has_a_report(run: Run, journal: Journal) -> None:
    running = asyncio.create_task(run.apply(journal))
    run.after_job = running.cancel
    with pytest.raises(asyncio.CancelledError):
        await running
    (report,) = run.kept
    assert report.failure is not None and report.failure.what == "interrupted"


async def test_a_run_without_a_rank_has_none(run: Run, journal: Journal) -> None:
    def told(server: str, request: Any) -> Any:
        raise AgentProblem("no", where=server)

    with pytest.raises((AgentProblem, RestoreFailed)):
        await run.apply(journal, told)
    assert run.kept == []


async def test_what_is_promised_is_known_before_any_server_is_touched(
    run: Run, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def told(server: str, request: Any) -> Any:
        asked.append(request)
        return answer(server, request)

    def promises(*_: Any) -> Any:
        raise RecursionError

    for module in (apply_module, delivery_module):
        monkeypatch.setattr(module, "promises", promises, raising=False)
    monkeypatch.setattr(apply_module, "delivered", delivery_module.delivered)
    with pytest.raises(RecursionError):
        await run.apply(journal, told)
    assert asked == []
