"""Tests what ranks are told of a plan's job.trace, and how their trace files are merged."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.compile.ranks import rank_specs
from placewire.controller.decide import traces
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.traces import merge_traces
from placewire.controller.decide.variants import Variant
from placewire.controller.errors import PlanError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.launch.programs import Ended
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.graph.json_file import read_json, write_json
from tests.controller.plans import placement, plan, plan_document


def traced(folder: str) -> Plan:
    document = plan_document()
    document["job"]["trace"] = {"folder": folder}
    return plan(document)


def decision(of: Plan, folder: Path) -> PlacementDecision:
    made = placement(of, ())
    assert isinstance(of.job, PlacedJob)
    variant = Variant(of.job, folder / "g", folder / "scored")
    return PlacementDecision(variant, folder / "placement", made, (made,))


def test_every_rank_is_told_folder_and_steps() -> None:
    of = traced("/shared/traces")
    specs = rank_specs(of, placement(of, ()), Path("placement.json"), Path("graph.json"))
    traces = [spec.trace for spec in specs]
    assert [t and t.file_of(k) for k, t in enumerate(traces)] == [
        Path(f"/shared/traces/rank{k}.json") for k in range(3)
    ]
    assert {t.steps for t in traces if t} == {2}
    assert rank_specs(plan(), placement(of, ()), Path("p"), Path("g"))[0].trace is None


def test_a_relative_folder_is_refused() -> None:
    with pytest.raises(PlanError, match=r"job\.trace\.folder: 'traces' is no absolute path"):
        traced("traces")


async def test_files_on_other_servers_are_left_to_the_user(tmp_path: Path) -> None:
    of, said = traced(str(tmp_path)), list[str]()
    assert await merge_traces(of, decision(of, tmp_path), NoLauncher(), said.append) is None
    assert f"{tmp_path}/rank0.json is on its server" in said[0]
    assert f"optimizer trace {tmp_path}/scored {tmp_path}/placement --merge" in said[1]


async def test_a_folder_that_cannot_be_looked_into_does_not_undo_the_job(tmp_path: Path) -> None:
    """The job has run; the ranks' user may keep its folder to itself."""
    of, said = traced(str(tmp_path / ("x" * 300))), list[str]()
    assert await merge_traces(of, decision(of, tmp_path), NoLauncher(), said.append) is None
    assert "could not be joined: [Errno 36] File name too long" in said[-1]


async def test_a_folder_that_nobody_answers_for_holds_up_neither_leases_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the server is gone that exports it."""
    answers = threading.Event()
    monkeypatch.setattr(traces, "_LONGEST_SECONDS", 0.1)
    monkeypatch.setattr(Path, "is_file", lambda path: answers.wait(5))
    of, said = traced(str(tmp_path)), list[str]()
    began = time.monotonic()
    assert await merge_traces(of, decision(of, tmp_path), NoLauncher(), said.append) is None
    assert "not joined within" in said[-1] and time.monotonic() - began < 5
    answers.set()


async def test_a_file_that_is_no_trace_does_not_undo_the_job(tmp_path: Path) -> None:
    of, said = traced(str(tmp_path)), list[str]()
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_text("{}")
    assert await merge_traces(of, decision(of, tmp_path), NoLauncher(), said.append) is None
    assert "could not be joined" in said[-1]


async def test_without_a_trace_nothing_is_said(tmp_path: Path) -> None:
    of, said = plan(), list[str]()
    assert (
        await merge_traces(of, decision(of, tmp_path), NoLauncher(), said.append) is None
        and not said
    )


class RanksUser(NoLauncher):
    """Runs programs as the ranks' user. wrote: the servers of the programs; allowed: whether that
    user may write."""

    def __init__(self, *, allowed: bool = True) -> None:
        super().__init__()
        self.wrote: list[str] = []
        self.allowed = allowed

    async def run(self, server: str, words: Sequence[str], **more: Any) -> Ended:
        self.wrote.append(server)
        if not self.allowed:
            more["on_line"]("Permission denied")
            return Ended(1, b"", ("Permission denied",))
        return await super().run(server, words, **more)


def merging(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[Plan, list[Path]]:
    """Lets `optimizer trace` write a small file at once. Returns the plan, and where it wrote."""
    of, outs = traced(str(folder)), list[Path]()
    for rank in range(3):
        (folder / f"rank{rank}.json").write_text("{}")

    async def run_relayed(words: Sequence[str], say: object) -> None:
        outs.append(Path(words[-1]))
        write_json(outs[-1], {"traceEvents": []})

    monkeypatch.setattr(traces, "run_relayed", run_relayed)
    return of, outs


async def test_only_the_ranks_user_writes_into_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller may be root, and the folder's owner may put links and pipes there."""
    victim, folder = tmp_path / "victim", tmp_path / "traces"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "trace.json").symlink_to(victim)
    of, outs = merging(monkeypatch, folder)
    user, said = RanksUser(), list[str]()
    found = await merge_traces(of, decision(of, tmp_path), user, said.append)
    assert found == folder / "trace.json" and read_json(found) == {"traceEvents": []}
    assert user.wrote == ["s1"] and victim.read_text() == "precious"
    assert not any(out.is_relative_to(folder) or out.exists() for out in outs) and len(outs) == 1


async def test_a_folder_that_the_ranks_user_may_not_write_to_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, _ = merging(monkeypatch, tmp_path)
    said = list[str]()
    user = RanksUser(allowed=False)
    assert await merge_traces(of, decision(of, tmp_path), user, said.append) is None
    assert said[-2:] == [
        "  Permission denied",
        f"trace: the ranks' files could not be joined: s1: {tmp_path}/trace.json could not be "
        "written by the ranks' user",
    ]


async def test_what_never_ends_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`optimizer trace` waits for whoever should write into the pipe."""
    monkeypatch.setattr(traces, "_LONGEST_SECONDS", 0.5)
    of, said = traced(str(tmp_path)), list[str]()
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_text("{}")
    os.mkfifo(tmp_path / "scored")
    async with asyncio.timeout(60):
        found = await merge_traces(of, decision(of, tmp_path), NoLauncher(), said.append)
    assert found is None and "not joined within" in said[-1]
