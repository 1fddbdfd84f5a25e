"""Are checkpoints that ranks would refuse refused before anything is changed?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import placewire.controller.story.propose as module
from placewire.controller.commands.doctor import exit_code, job_problems, of_job
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.launch.programs import Ended, OnLine
from placewire.controller.plan.plan import Plan
from placewire.controller.show.story import Show
from placewire.controller.story.propose import propose
from placewire.controller.story.tools import ApplyRequest, Tools
from placewire.controller.verify.checkpoint_folder import checkpoint_problems
from tests.controller.plans import placement, plan, plan_document


class Here:
    """A launcher that runs what is for servers on this machine, as a lab does."""

    on_servers = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def require_ready(self) -> None:
        return

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        self.asked.append(server)
        return await NoLauncher().run(server, words, given=given, on_line=on_line)


class Silent:
    """Agents that have dialled in and must not be asked anything."""

    async def wait_for(self, *_: Any, **__: Any) -> None:
        return None


class Old(Here):
    """Its first server has no such program."""

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        if server == "s1":
            return Ended(1, b"", ("No module named placewire",))
        return await super().run(server, words, given=given, on_line=on_line)


def saving_in(folder: Path) -> Plan:
    document = plan_document()
    document["job"]["checkpoint"] = {"folder": str(folder)}
    return plan(document)


ALL = ("s1", "s2", "s3")


async def test_every_server_is_asked_and_heard(tmp_path: Path) -> None:
    launcher: Any = Here()
    assert await checkpoint_problems(saving_in(tmp_path / "kept"), launcher, ALL) == {}
    assert sorted(launcher.asked) == [*ALL]
    (tmp_path / "kept").write_text("no folder")
    found = await checkpoint_problems(saving_in(tmp_path / "kept"), launcher, ("s2", "s3"))
    assert sorted(launcher.asked) == ["s1", "s2", "s2", "s3", "s3"]
    assert [*found] == ["s2", "s3"]
    for server, one in found.items():
        assert isinstance(one, UsageError) and "is no folder" in one.what
        assert one.where == server and one.remedy


async def test_a_job_that_saves_nothing_is_not_looked_at() -> None:
    launcher: Any = Here()
    assert await checkpoint_problems(plan(plan_document()), launcher, ALL) == {}
    assert launcher.asked == []


async def test_a_folder_on_this_machine_is_not_taken_for_the_servers(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    assert await checkpoint_problems(saving_in(tmp_path / "kept"), NoLauncher(), ALL) == {}


async def test_a_server_that_cannot_look_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    found = await checkpoint_problems(saving_in(tmp_path / "kept"), cast(Any, Old()), ALL)
    first, second, _ = found.values()
    assert isinstance(first, LaunchFailed) and first.where == "s1"
    assert "No module named placewire" in first.what
    assert isinstance(second, UsageError) and second.where == "s2"


def proposing(
    of: Plan, devices: Sequence[str], launcher: Here, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ApplyRequest, Tools]:
    """devices: those that the placement uses."""
    made = placement(of, ())
    made = made.model_copy(update={"order": {d: made.order[d] for d in devices}})
    decision = PlacementDecision(cast(Any, None), folder / "p.json", made, (made,))

    async def decided(*_: Any) -> PlacementDecision:
        return decision

    monkeypatch.setattr(module, "decide", decided)
    monkeypatch.setattr(Show, "decision", lambda self, one: None)

    async def yes() -> bool:
        return True

    tools = Tools(cast(Any, Silent()), cast(Any, None), cast(Any, launcher), folder, folder, Show())
    return ApplyRequest(of, Path("plan.yaml"), False, yes), tools


async def test_a_proposal_is_refused_before_any_agent_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a server before could not be looked at."""
    (tmp_path / "kept").write_text("no folder")
    of, devices = saving_in(tmp_path / "kept"), ("s1/0", "s2/0")
    for launcher, where in ((Here(), "s1"), (Old(), "s2")):
        asked = proposing(of, devices, launcher, tmp_path, monkeypatch)
        with pytest.raises(UsageError, match="is no folder") as raised:
            await propose(*asked)
        assert raised.value.where == where


async def test_a_server_that_gets_no_rank_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Here()
    of = saving_in(tmp_path / "kept")
    asked = proposing(of, ("s2/0",), launcher, tmp_path, monkeypatch)
    with pytest.raises(AttributeError, match="hello"):  # What comes after needs agents.
        await propose(*asked)
    assert launcher.asked == ["s2"]


async def test_doctor_tells_of_it(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    none = cast(Any, None)
    tools = Tools(none, none, cast(Any, Old()), tmp_path, tmp_path, Show())
    found = await job_problems(saving_in(tmp_path / "kept"), tools)
    one, other = of_job(found)
    assert one.where == "s1" and "cannot be looked at" in one.what and one.severity == "warning"
    assert other.where == "s2, s3" and "is no folder" in other.what and other.severity == "error"
    assert "a job that has a rank there cannot begin" in other.why
    assert exit_code(found, {"s1": [one]}) == UsageError.exit_code
