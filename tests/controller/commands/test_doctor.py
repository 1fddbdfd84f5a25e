"""`controller doctor` ends as `apply` would: with 0 only where nothing refuses the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.agent.contract.diagnosis import Finding
from placewire.controller.agents.authority import Authority
from placewire.controller.cli import main
from placewire.controller.commands import doctor, session
from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.launch.programs import Ended, OnLine
from tests.controller.plans import plan_document
from tests.free_port import free_port

WRONG = Finding(severity="error", what="has no carrier", where="NIC nic0", why="", remedy="")
MEANT = Finding(severity="warning", what="is not synchronised", where="clock", why="", remedy="")
KNOWN = Finding(severity="note", what="can do RDMA", where="NIC nic0", why="", remedy="")


class Ready:
    """Starts programs on this machine, as a lab does."""

    on_servers = True

    def require_ready(self) -> None:
        return

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        return await NoLauncher().run(server, words, given=given, on_line=on_line)


class Blind(Ready):
    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        return Ended(1, b"", ("No module named placewire",))


class Unready(Ready):
    def require_ready(self) -> None:
        raise LaunchFailed("'/no/python' is not there", where="s1", remedy="look at job.python")


@pytest.fixture
def doctor_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs the command; returns its exit code, and what it printed. Its agents find what they are
    told to find."""
    Authority.load(tmp_path / "s" / "ca")

    def run(
        *words: str, launcher: object = None, finds: Sequence[Finding] = (), **job: Any
    ) -> tuple[object, str]:
        async def on_servers(*_: object) -> Mapping[str, Sequence[Finding]]:
            return {"s1": (), "s2": finds}

        monkeypatch.setattr(doctor, "_on_servers", on_servers)
        monkeypatch.setattr(session, "_launcher", lambda *_: launcher or NoLauncher())
        document = plan_document()
        document["job"] |= job
        file = tmp_path / "plan.yaml"
        file.write_text(yaml.safe_dump(document))
        options = ["--state-dir", str(tmp_path / "s"), "--listen", f"127.0.0.1:{free_port()}"]
        with pytest.raises(SystemExit) as ended:
            main(["doctor", str(file), "--no-lab", *words, *options])
        return ended.value.code, capsys.readouterr().out

    return run


@pytest.fixture
def examined(doctor_said: Any) -> Any:
    """Runs the command; returns its exit code, and what it found on this machine."""

    def run(*words: str, **given: Any) -> tuple[object, list[dict[str, str]]]:
        code, printed = doctor_said("--json", *words, **given)
        return code, json.loads(printed)["servers"]["this machine"]

    return run


@pytest.mark.parametrize(("finds", "is_free"), [([], True), ([KNOWN], True), ([MEANT], False)])
def test_it_says_that_nothing_is_in_the_way_where_there_are_notes_alone(
    doctor_said: Any, tmp_path: Path, finds: Sequence[Finding], is_free: bool
) -> None:
    """A job with checkpoints always has a note: with which step it begins."""
    saving = {"checkpoint": {"folder": str(tmp_path / "kept")}}
    code, told = doctor_said(launcher=Ready(), finds=finds, **saving)
    assert code == 0 and "the job begins at step 0" in told
    assert all(one.what in told for one in finds)
    assert ("nothing stands in the way of the plan" in told) is is_free


def test_a_plan_that_apply_would_take_ends_with_0(examined: Any) -> None:
    assert examined(launcher=Ready()) == (0, [])
    assert examined(launcher=Ready(), finds=[MEANT]) == (0, [])


@pytest.mark.parametrize(
    "launcher, code, what",
    [(None, 2, "does not say how to start ranks"), (Unready(), 7, "'/no/python' is not there")],
)
def test_ranks_that_cannot_be_started_are_an_error_with_apply_s_code(
    examined: Any, launcher: object, code: int, what: str
) -> None:
    for finds in ([], [WRONG]):  # `apply` looks at the launcher first.
        ended, (found,) = examined(launcher=launcher, finds=finds)
        assert (ended, found["severity"]) == (code, "error")
        assert what in found["what"] and found["remedy"]
    assert examined("--network-only", launcher=launcher) == (0, [])
    assert examined("--network-only", launcher=launcher, finds=[WRONG]) == (5, [])


def test_checkpoints_that_ranks_would_refuse_are_an_error(examined: Any, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    saving = {"checkpoint": {"folder": str(tmp_path / "kept")}}
    ended, (found,) = examined(launcher=Ready(), **saving)
    assert (ended, found["severity"]) == (2, "error") and "is no folder" in found["what"]
    assert examined(launcher=Ready(), finds=[WRONG], **saving)[0] == 5
    # `apply` says so and goes on.
    ended, (found,) = examined(launcher=Blind(), **saving)
    assert (ended, found["severity"]) == (0, "warning") and "cannot be looked at" in found["what"]
