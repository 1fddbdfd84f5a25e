"""`python -m placewire.oracle compare` says what differs, and ends with a code that tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from placewire.oracle.__main__ import EXIT_DIFFERENT, main
from placewire.oracle.snapshot import EXIT_UNREADABLE, VERSION


def written(path: Path, mtu: int, version: int = VERSION) -> str:
    facts = {"link": {"nic0": {"MTU": mtu, "up": True}}}
    path.write_text(json.dumps({"version": version, "facts": facts}))
    return str(path)


def test_what_differs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, now = written(tmp_path / "a", 1500), written(tmp_path / "b", 9000)
    assert main(["compare", before, before]) == 0
    assert capsys.readouterr().out == "nothing differs\n"
    assert main(["compare", before, now]) == EXIT_DIFFERENT
    assert capsys.readouterr().out == "link nic0: MTU was 1500, is 9000\n"


DAMAGED = '{"version": 1, "facts": {"address": []}}'
NO_SNAPSHOTS = ("", "[]", "{}", '{"version": 1, "facts": []}', "no JSON", DAMAGED, "[" * 100_000)


@pytest.mark.parametrize("text", NO_SNAPSHOTS, ids=lambda text: text[:45])
def test_what_is_no_snapshot_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "bad").write_text(text)
    good = written(tmp_path / "good", 1500)
    assert main(["compare", good, str(tmp_path / "bad")]) == EXIT_UNREADABLE
    assert "oracle: " in capsys.readouterr().err
    assert main(["compare", good, str(tmp_path / "missing")]) == EXIT_UNREADABLE


def test_what_of_a_damaged_snapshot_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").write_text(DAMAGED)
    good = written(tmp_path / "good", 1500)
    assert main(["compare", good, str(tmp_path / "bad")]) == EXIT_UNREADABLE
    said = capsys.readouterr().err
    assert "the present snapshot is damaged" in said and "'address'" in said


def test_a_snapshot_that_is_there_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "before.json"
    for taken in ("before", "after"):
        monkeypatch.setattr(
            "placewire.oracle.__main__.take", lambda when=taken: {"version": VERSION, "facts": when}
        )
        code = main(["take", "--out", str(file)])
        assert code == (0 if taken == "before" else EXIT_UNREADABLE)
    assert json.loads(file.read_text())["facts"] == "before"
    assert f"{file} is there already, and is not replaced" in capsys.readouterr().err


def test_snapshots_of_two_versions_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, other = written(tmp_path / "a", 1500), written(tmp_path / "b", 1500, VERSION + 1)
    assert main(["compare", good, other]) == EXIT_UNREADABLE
    assert "one release" in capsys.readouterr().err
