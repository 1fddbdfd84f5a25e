"""`destroy` and `recover` go on where ranks do not end, or cannot be looked for, and say so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.agent.contract.state import LeaseState
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.cli import main
from placewire.controller.commands import recover, session
from placewire.controller.errors import JobFailed, JournalFailed, LaunchFailed
from placewire.controller.launch.launcher import NoLauncher, RunningProgram
from placewire.controller.story import destruction, dropped_servers, open_decision, recovery
from tests.controller.plans import plan_document
from tests.free_port import free_port

STUCK = JobFailed("ranks of an earlier job do not end: s1 (pid 4711)", where="s1", remedy="x")
UNREACHED = LaunchFailed("SSH cannot be reached", where="s1", remedy="x")


class Stuck(NoLauncher):
    def __init__(self, problem: JobFailed) -> None:
        super().__init__()
        self.problem = problem

    def left(self) -> tuple[RunningProgram, ...]:
        return (RunningProgram("s1", 4711, 9.0, "x", plan="small"),)

    def end_left(self, ranks: Sequence[RunningProgram]) -> None:
        raise self.problem


@pytest.mark.parametrize(
    ("problem", "told"),
    [(STUCK, "s1 (pid 4711); this goes on beside them"), (UNREACHED, "end with their lease")],
)
@pytest.mark.parametrize("command", ["destroy", "recover"])
def test_it_says_so_and_goes_on(
    command: str, problem: JobFailed, told: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    done: list[str] = []

    async def nothing(*arguments: Any, **named: Any) -> Any:
        return {}

    async def destroyed(*arguments: Any) -> dict[str, Any]:
        done.append("destroy")
        return {}

    async def recovered(*arguments: Any) -> list[str]:
        done.append("recover")
        return ["s1"]

    def unreadable(*arguments: Any) -> Any:
        raise JournalFailed("it is damaged")

    monkeypatch.setattr(session, "_launcher", lambda plan, file: Stuck(problem))
    monkeypatch.setattr(Agents, "wait_for", nothing)
    monkeypatch.setattr(destruction, "others_on", nothing)
    monkeypatch.setattr(destruction, "destroyed", destroyed)
    monkeypatch.setattr(dropped_servers, "dropped_servers", nothing)
    monkeypatch.setattr(open_decision, "left_open", unreadable)
    monkeypatch.setattr(recovery, "recover_by_leases", recovered)
    monkeypatch.setattr(recover, "_say_what_stands", nothing)
    plan, state = tmp_path / "plan.yaml", tmp_path / "state"
    plan.write_text(yaml.safe_dump(plan_document(2)))
    Authority.load(state / "ca")
    with pytest.raises(SystemExit) as ended:
        main([
            command, str(plan), "--yes", "--no-lab", "--state-dir", str(state),
            "--listen", f"127.0.0.1:{free_port()}",
        ])  # fmt: skip
    said = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0 and done == [command]
    assert told in said


@pytest.mark.parametrize("command", ["destroy"])
def test_no_rank_is_ended_where_the_network_s_part_may_not_go_on(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every server carries another plan."""

    class Watched(Stuck):
        ended = False

        def end_left(self, ranks: Sequence[RunningProgram]) -> None:
            Watched.ended = True

    async def nothing(*arguments: Any, **named: Any) -> Any:
        return {}

    async def carried(*arguments: Any) -> dict[str, LeaseState]:
        return dict.fromkeys(
            ("s1", "s2"), LeaseState(phase="committed", generation=4, plan_name="other")
        )

    monkeypatch.setattr(session, "_launcher", lambda plan, file: Watched(STUCK))
    monkeypatch.setattr(Agents, "wait_for", nothing)
    monkeypatch.setattr(destruction, "answered_leases", carried)
    plan, state = tmp_path / "plan.yaml", tmp_path / "state"
    plan.write_text(yaml.safe_dump(plan_document(2)))
    Authority.load(state / "ca")
    with pytest.raises(SystemExit) as ended:
        main([
            command, str(plan), "--yes", "--no-lab", "--state-dir", str(state),
            "--listen", f"127.0.0.1:{free_port()}",
        ])  # fmt: skip
    assert ended.value.code == 5 and not Watched.ended
