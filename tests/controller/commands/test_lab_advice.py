"""What a command says where no agent of its plan answers, and the plan may be for a lab."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.cli import main
from placewire.controller.commands.lab_advice import about_lab
from placewire.controller.lab import record as records
from placewire.controller.lab.record import LabRecord, Recorder
from tests.controller.plans import plan, plan_document
from tests.free_port import free_port

FILE, ALL = Path("mine.yaml"), ("s1", "s2", "s3")
LAUNCH = {"kind": "ssh", "user": "me"}


@pytest.fixture(autouse=True)
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for records of labs where none is."""
    monkeypatch.delenv("PLACEWIRE_LAB", raising=False)
    monkeypatch.setattr(records, "LAB_ROOT", tmp_path / "run" / "lab")
    return tmp_path / "run" / "lab"


def script_plan(**more: Any) -> dict[str, Any]:
    document = plan_document() | more
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
    del document["solve"]
    return document


def test_a_plan_without_launch_may_be_for_a_lab_that_is_not_up() -> None:
    said = about_lab(plan(script_plan()), FILE, ALL)
    assert "no lab 'small' is up" in said and "`controller lab up mine.yaml`" in said


def test_a_server_that_answers_is_of_no_lab_that_is_not_up() -> None:
    assert about_lab(plan(script_plan()), FILE, ALL[1:]) == ""


def test_a_plan_with_launch_is_of_servers() -> None:
    assert about_lab(plan(script_plan(launch=LAUNCH)), FILE, ALL) == ""


def test_a_lab_that_is_up_is_not_to_be_left_out(labs: Path) -> None:
    labs.mkdir(parents=True)
    record = LabRecord(
        name="small", servers=(), controller_namespace="c", controller_address="10.9.0.254",
        namespaces=(), complete=True,
    )  # fmt: skip
    Recorder(record)
    said = about_lab(plan(script_plan()), FILE, ALL)
    assert "is up on this machine" in said and "--no-lab" in said and "lab up" not in said


def _told(
    capsys: pytest.CaptureFixture[str], folder: Path, document: dict[str, Any], *words: str
) -> tuple[object, str]:
    """(exit code, all that the command printed)"""
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(document))
    options = ("--state-dir", str(folder / "s"), "--listen", f"127.0.0.1:{free_port()}")
    with pytest.raises(SystemExit) as ended:
        main([words[0], str(file), *words[1:], *options])
    printed = capsys.readouterr()
    return ended.value.code, " ".join((printed.out + printed.err).split())


COMMANDS = [
    ("status",),
    ("verify",),
    ("doctor", "--network-only", "--json"),
    ("preview", "--network-only"),
    ("apply", "--network-only", "--yes"),
]


@pytest.mark.parametrize("has_authority", [True, False])
@pytest.mark.parametrize("words", COMMANDS)
def test_every_answer_names_the_lab_first_and_servers_too(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
    has_authority: bool,
) -> None:
    async def nobody(self: Agents, servers: Sequence[str], timeout_seconds: float) -> list[str]:
        return list(servers)

    monkeypatch.setattr(Agents, "missing", nobody)
    monkeypatch.setenv("COLUMNS", "200")
    if has_authority:
        Authority.load(tmp_path / "s" / "ca")
    code, told = _told(capsys, tmp_path, script_plan(), *words)
    assert code == 5, told
    lab, servers = f"`controller lab up {tmp_path}/mine.yaml`", "`controller provision"
    assert 0 < told.index(lab) < told.index(servers), told
    assert ("systemctl" in told) is has_authority
    code, told = _told(capsys, tmp_path, script_plan(launch=LAUNCH), *words)
    assert code == 5 and servers in told and "lab up" not in told


def test_what_would_go_on_in_the_background_says_it_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detached = ("apply", "--network-only", "--yes", "--detach")
    code, told = _told(capsys, tmp_path, script_plan(), *detached)
    assert code == 5 and f"`controller lab up {tmp_path}/mine.yaml`" in told
    assert not (tmp_path / "s").exists()
