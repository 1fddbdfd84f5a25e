"""Tests what ranks are told of a plan's job.trace, and how their trace files are merged."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.controller.compile.ranks import rank_specs
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.traces import merge_traces
from placewire.controller.errors import PlanError
from placewire.controller.plan.plan import Plan
from tests.controller.plans import placement, plan, plan_document


def traced(folder: str) -> Plan:
    document = plan_document()
    document["job"]["trace"] = {"folder": folder}
    return plan(document)


def decision(of: Plan, folder: Path) -> PlacementDecision:
    made = placement(of, ())
    return PlacementDecision(folder / "g", folder / "scored", folder / "placement", made, (made,))


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
    assert await merge_traces(of, decision(of, tmp_path), said.append) is None
    assert f"{tmp_path}/rank0.json is on its server" in said[0]
    assert f"optimizer trace {tmp_path}/scored {tmp_path}/placement --merge" in said[1]


async def test_a_file_that_is_no_trace_does_not_undo_the_job(tmp_path: Path) -> None:
    of, said = traced(str(tmp_path)), list[str]()
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_text("{}")
    assert await merge_traces(of, decision(of, tmp_path), said.append) is None
    assert "could not be joined" in said[-1]


async def test_without_a_trace_nothing_is_said(tmp_path: Path) -> None:
    of, said = plan(), list[str]()
    assert await merge_traces(of, decision(of, tmp_path), said.append) is None and not said
