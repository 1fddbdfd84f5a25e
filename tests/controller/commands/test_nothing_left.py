"""Commands that only look leave nothing behind, on a machine where no controller ever ran too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.cli import main
from placewire.controller.errors import JournalFailed
from placewire.controller.records.journal import Journal
from tests.controller.plans import plan_document
from tests.free_port import free_port

TALKING = [
    ("preview", "{plan}", "--no-lab"),
    ("preview", "{plan}", "--no-lab", "--network-only", "--out", "{folder}/shown.json"),
    ("doctor", "{plan}", "--no-lab"),
    ("status", "{plan}", "--no-lab"),
    ("verify", "{plan}", "--no-lab"),
    ("apply", "{plan}", "--no-lab", "--yes"),
    ("apply", "{plan}", "--no-lab", "--yes", "--detach"),
    ("rollback", "{plan}", "--no-lab", "--yes"),
    ("recover", "{plan}", "--no-lab", "--yes"),
    ("destroy", "{plan}", "--no-lab", "--yes"),
    ("init", "--out", "{folder}/first.yaml"),
]
READING = [("history",), ("logs", "small"), ("report", "small", "--out", "{folder}/page.html")]


def _ended(
    capsys: pytest.CaptureFixture[str], folder: Path, words: Sequence[str]
) -> tuple[object, str]:
    """(exit code, standard error) of the command, whose state folder is folder/s/t."""
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(plan_document()))
    given = [word.format(plan=file, folder=folder) for word in words]
    if words in TALKING:
        given += ["--listen", f"127.0.0.1:{free_port()}"]
    with pytest.raises(SystemExit) as ended:
        main([*given, "--state-dir", str(folder / "s" / "t")])
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize("words", TALKING)
def test_where_no_agent_can_have_enrolled_it_is_said_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    code, told = _ended(capsys, tmp_path, words)
    assert code == 5, told
    assert "no server has enrolled here yet" in told and str(tmp_path / "s" / "t") in told
    for remedy in ("`controller provision PLAN`", "`controller enrol`", "--state-dir"):
        assert remedy in told
    assert [*tmp_path.iterdir()] == [tmp_path / "plan.yaml"]


@pytest.mark.parametrize("words", READING)
@pytest.mark.parametrize("is_there", [True, False])
def test_what_reads_the_journal_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], is_there: bool
) -> None:
    state = tmp_path / "s" / "t"
    if is_there:
        state.mkdir(parents=True)
    code, _ = _ended(capsys, tmp_path, words)
    assert code == (0 if words == ("history",) else 2)
    assert state.exists() is is_there and not (is_there and [*state.iterdir()])
    assert {path.name for path in tmp_path.iterdir()} <= {"plan.yaml", "s"}


@pytest.mark.parametrize("words", TALKING[:5])
def test_what_only_looks_makes_no_journal_beside_an_authority(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
) -> None:
    async def nobody(self: Agents, servers: Sequence[str], timeout_seconds: float) -> list[str]:
        return list(servers)

    monkeypatch.setattr(Agents, "missing", nobody)
    state = tmp_path / "s" / "t"
    Authority.load(state / "ca")
    before = sorted((state / "ca").iterdir())
    code, _ = _ended(capsys, tmp_path, words)
    # A verification holds the lock: it sends traffic.
    assert code != 0 and {path.name for path in state.iterdir()} <= {"ca", "apply.lock"}
    assert sorted((state / "ca").iterdir()) == before
    assert (state / "apply.lock").exists() is (words[0] == "verify")


def test_a_journal_that_is_not_made_has_nothing_and_takes_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "s", makes=False) as journal:
        assert journal.decisions() == () and journal.runs() == ()
        assert journal.next_generation("s1", 4) == 5
        assert journal.change_lock.holder() is None
        with pytest.raises(JournalFailed, match="makes no journal"):
            journal.begin("plan", "d", {"s1": 1})
    assert not (tmp_path / "s").exists()
