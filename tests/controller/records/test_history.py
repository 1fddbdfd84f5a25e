"""`controller history` shows the journal to people and, as JSON, to machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.cli import main
from placewire.controller.records.journal import Journal
from placewire.controller.records.program import ProgramRow
from placewire.controller.records.report import FailureRow, RunReport

REPORT = RunReport(
    plan_name="small", plan_digest="d" * 64, generations={"s1": 1}, changes={"s1": 3},
    engine="auto", sharing="strict", operators=9, devices=("s1/0", "s2/0"), server_pairs=(),
    considered=(), predicted_step_seconds=2.0, bound_seconds=1.9, gap=0.05,
    single_device_seconds=3.0, links=(), step_seconds=(2.5, 2.1), measured_step_seconds=2.1,
    network="restored", stage_seconds={}, files={},
    program=ProgramRow(kind="model", name="package.models.mlp:step"),
)  # fmt: skip
FAILED = REPORT.model_copy(
    update={
        "step_seconds": (), "measured_step_seconds": None,
        "failure": FailureRow(rank=1, server="s2", what="gone", remedy=""),
    }
)  # fmt: skip


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with Journal.open(tmp_path) as journal:
        first = journal.begin("small", "a" * 64, {"s1": 1, "s2": 4})
        journal.decide(first, "committed")
        journal.decide(first, "restored")
        journal.begin("other", "b" * 64, {"s1": 2})
        for report in (REPORT, FAILED):
            journal.record_run("small", report.model_dump_json())
        journal.record_run("other", '{"version": 99}')
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["history", *arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_decisions_and_runs_are_a_line_each(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(capsys, "--state-dir", str(state)).splitlines()
    assert max(map(len, lines)) <= 100

    def cells(word: str) -> list[list[str]]:
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
        return [row for row in rows if word in row]

    assert [row[3:] for row in cells("a" * 12)] == [["a" * 12, "s1 1, s2 4", "undone"]]
    assert cells("done")[0][1:] == [
        "small", "mlp:step", "strict", "2", "2", "2 s", "2.1 s", "+5.0%", "done",
    ]  # fmt: skip
    assert cells("failed")[0][1:] == [
        "small",
        "mlp:step",
        "strict",
        "2",
        "0",
        "2 s",
        "",
        "",
        "failed",
    ]
    assert len(cells("other version")) == 1


def test_history_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "none"
    assert "nothing was decided yet" in said(capsys, "--state-dir", str(folder))
    document = json.loads(said(capsys, "--json", "--state-dir", str(folder)))
    assert document == {"version": 1, "decisions": [], "runs": []}
    assert not folder.exists()


def test_one_plan_s_the_last_and_as_json(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--state-dir", str(state))
    document: dict[str, Any] = json.loads(said(capsys, "small", "--last", "1", "--json", *folder))
    assert [one["plan_name"] for one in document["decisions"]] == ["small"]
    assert [json.loads(one["report"])["failure"]["rank"] for one in document["runs"]] == [1]
    assert said(capsys, "unknown", *folder) == "nothing was decided yet for unknown\n"


@pytest.mark.parametrize("command", ["history", "logs", "attach", "report"])
@pytest.mark.parametrize("mistyped", ["no-such.yaml", "plans/small", ".."])
def test_a_file_that_is_not_there_is_taken_for_no_plan_s_name(
    command: str, mistyped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nothing was decided yet` would say that the plan is valid, as the tutorial has it."""
    with pytest.raises(SystemExit) as ended:
        main([command, mistyped, "--state-dir", str(tmp_path)])
    assert ended.value.code == 2
    assert f"{mistyped}: there is no such file" in capsys.readouterr().err
