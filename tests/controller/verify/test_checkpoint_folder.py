"""Are checkpoints that ranks would refuse refused before anything is decided or changed?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from placewire.controller.commands.doctor import _here
from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.launch.programs import Ended, OnLine
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Journal
from placewire.controller.show.story import Show
from placewire.controller.story.propose import propose
from placewire.controller.story.tools import ApplyRequest, Tools
from placewire.controller.verify.checkpoint_folder import require_usable_checkpoints
from tests.controller.plans import plan, plan_document


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
    async def run(self, *_: Any, **__: Any) -> Ended:
        return Ended(1, b"", ("No module named placewire",))


def saving_in(folder: Path) -> Plan:
    document = plan_document()
    document["job"]["checkpoint"] = {"folder": str(folder)}
    return plan(document)


async def test_every_server_is_asked_and_the_first_that_refuses_is_named(tmp_path: Path) -> None:
    launcher: Any = Here()
    await require_usable_checkpoints(saving_in(tmp_path / "kept"), launcher)
    assert sorted(launcher.asked) == ["s1", "s2", "s3"]
    (tmp_path / "kept").write_text("no folder")
    with pytest.raises(UsageError, match="is no folder") as raised:
        await require_usable_checkpoints(saving_in(tmp_path / "kept"), launcher)
    assert raised.value.where == "s1" and raised.value.remedy


async def test_a_job_that_saves_nothing_is_not_looked_at() -> None:
    launcher: Any = Here()
    await require_usable_checkpoints(plan(plan_document()), launcher)
    assert launcher.asked == []


async def test_a_folder_on_this_machine_is_not_taken_for_the_servers(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    await require_usable_checkpoints(saving_in(tmp_path / "kept"), NoLauncher())


async def test_a_server_that_cannot_look_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="No module named placewire"):
        await require_usable_checkpoints(saving_in(tmp_path), cast(Any, Old()))


async def test_a_proposal_is_refused_before_anything_is_decided(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    of, none = saving_in(tmp_path / "kept"), cast(Any, None)
    tools = Tools(cast(Any, Silent()), none, cast(Any, Here()), tmp_path, tmp_path, Show())

    async def yes() -> bool:
        return True

    with pytest.raises(UsageError, match="is no folder"):
        await propose(ApplyRequest(of, Path("plan.yaml"), False, yes), tools)


async def test_doctor_tells_of_it(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    none = cast(Any, None)
    with Journal.open(tmp_path / "state") as journal:
        tools = Tools(none, journal, cast(Any, Here()), tmp_path, tmp_path, Show())
        (found,) = await _here(saving_in(tmp_path / "kept"), tools)
    assert "is no folder" in found.what and "no job can be started" in found.why
