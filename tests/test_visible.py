"""What others wrote is shown as it is, and a terminal obeys none of it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewire.agent.contract.messages import ReadBackResult
from placewire.agent.contract.state import Change, DriftState, Refusal
from placewire.controller.cli import COMMANDS, main
from placewire.controller.commands.talking import print_document
from placewire.controller.errors import AgentRefused, JobFailed, PlacewireError
from placewire.controller.launch.job_status import JobStatus
from placewire.controller.records.run_log import RunLog
from placewire.controller.show.story import Show
from placewire.job.contract.specification import Failed, Resumed
from placewire.visible import json_document, visible, visible_json, visible_lines

# Sets the title, fills the clipboard, clears the screen, hides, moves up, turns the direction
# (U+202E, U+2066), rings, deletes, returns; the same as C1 controls; a line and a paragraph break.
ATTACKS = (
    "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJmIC8=\x07", "\x1b[2J\x1b[H", "\x1b[8m", "\x1b[1A\x1b[2K",
    "\u202egnp.exe", "\u2066x", "\x07", "\x08\x08\x08", "ok\rfailed", "\x9b2J", "\x90q\x9c",
    "\u2028forged", "\u2029forged", "\x7f", "\udc80", "\u200b", "\U000e0041", "\0", "\x0b", "\x0c",
)  # fmt: skip
# No message holds a half of a surrogate pair; a file's name does.
EVIL = "".join(ATTACKS).replace("\udc80", "")


def obeyed(text: str) -> list[str]:
    spaces = {c for c in text if c in "\n\t" or unicodedata.category(c) == "Zs"}
    return [repr(c) for c in text if not (c.isprintable() or c in spaces)]


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
def test_each_is_written_as_an_escape(attack: str) -> None:
    for shown in (visible(attack), visible_lines(attack)):
        assert not obeyed(shown) and "\\" in shown
        shown.encode()
    document = visible_json(json.dumps({"a": attack}, ensure_ascii=False))
    assert not obeyed(document) and json.loads(document) == {"a": attack}


def test_what_people_read_stays() -> None:
    for text in ("naïve 400 Gbit/s µs → ×", "日本語 x", "a\tb", "C:\\x1b"):
        assert visible(text) == visible_lines(text) == visible_json(text) == text
    assert visible("\x1b[0m\r\n") == r"\x1b[0m\r\n"


@given(st.text())
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    for of in (visible, visible_lines):
        once = of(text)
        assert of(once) == once and not obeyed(once)


def test_a_further_line_cannot_pass_for_one_of_ours() -> None:
    text = "refused\ncontroller: all servers are fine\n    1.0 s  kept\n\nend"
    lines = visible_lines(text, indent="  ").split("\n")
    assert lines == [
        "refused",
        "  controller: all servers are fine",
        "    1.0 s  kept",
        "",
        "  end",
    ]


# -- the places where people read it ---------------------------------------------------------------


@pytest.fixture
def show() -> Show:
    made = Show()
    made.console.file = io.StringIO()
    return made


def printed(show: Show) -> str:
    file = show.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def change(text: str) -> Change:
    return Change(action="add", collection="flows", key=text, before=None, after=text)


def told_by_a_rank(show: Show) -> None:
    show.printed(0, EVIL)
    show.event(Failed(rank=0, what=EVIL))
    show.event(Resumed(rank=0, step=1, path=EVIL, notes=(EVIL,)))


def told_by_an_agent(show: Show) -> None:
    drift = DriftState(policy="heal", drifts=1, notes=(EVIL,))
    found = ReadBackResult(deviations=(change(EVIL),), problems=(EVIL,), drift=drift)
    show.status({"s1": None}, {"s1": found})


def told_of_a_job(show: Show) -> None:
    show.status({}, {}, JobStatus((), EVIL, 1, EVIL, (EVIL,)))


def told_of_a_refusal(show: Show) -> None:
    show.say(f"turned away: {EVIL}")


@pytest.mark.parametrize(
    "tell", [told_by_a_rank, told_by_an_agent, told_of_a_job, told_of_a_refusal]
)
def test_a_terminal_obeys_nothing_of_it(show: Show, tell: Any) -> None:
    tell(show)
    assert printed(show) and not obeyed(printed(show))
    assert r"\x1b]0;owned\x07" in printed(show).replace("\n", "")


def test_it_is_no_markup_and_ends_no_command(show: Show) -> None:
    """rich would take `[/x]` for the end of a style that never began, and raise."""
    for text in ("[/x] [red]failed[/red] [link=http://x]y[/link] :bomb:",):
        show.say(text)
        show.status({}, {}, JobStatus((), None, 1, text, ()))
        show.console.print(text)
        assert printed(show).count(text) == 3


def test_it_forges_no_line(show: Show) -> None:
    forged = "x\n   1.0 s  every server is fine\ns2: fine"
    show.printed(0, forged)
    show.say(forged)
    drift = DriftState(policy="heal", drifts=1, notes=(forged,))
    found = ReadBackResult(deviations=(change(forged),), problems=(forged,), drift=drift)
    show.status({"s1": None}, {"s1": found})
    assert not [line for line in printed(show).split("\n") if line.startswith(("s2", "1.0 s"))]


def failing(error: PlacewireError) -> Any:
    class Command:
        PURPOSE = "fails"

        @staticmethod
        def add_arguments(parser: Any) -> None:
            parser.add_argument("--json", action="store_true")

        @staticmethod
        def run(arguments: Any) -> int:
            raise error

    return Command


REFUSED = AgentRefused("s1", Refusal(what="no\ncontroller: fine" + EVIL, where=EVIL, remedy=EVIL))
FAILED = JobFailed(f"rank 0 ended with 1\n    {EVIL}\ncontroller: fine", where=EVIL, remedy=EVIL)


@pytest.mark.parametrize("error", [REFUSED, FAILED], ids=["of an agent", "of a rank"])
def test_an_error_is_shown(
    error: PlacewireError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "history", failing(error))
    for words in (["history"], ["history", "--json"]):
        with pytest.raises(SystemExit):
            main(words)
        told = capsys.readouterr()
        assert not obeyed(told.err + told.out), "also where standard output is a terminal"
        begins = [line for line in told.err.split("\n") if line.startswith("controller:")]
        assert len(begins) == 1, told.err


def test_a_document_and_a_log_have_it_as_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_document({"a": EVIL})
    out = capsys.readouterr().out
    assert not obeyed(out) and json.loads(out) == {"version": 1, "a": EVIL}
    with (tmp_path / "log").open("w") as file:
        RunLog(file).write(0, "a\nb" + EVIL)
    text = (tmp_path / "log").read_text()
    assert not obeyed(text) and text.count("\n") == 1


def test_a_log_of_a_former_release_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs" / "plan"
    folder.mkdir(parents=True)
    (folder / "1.log").write_text(f"10:00:00 rank 0 | {EVIL}\n10:00:01 rank 1 | ok\n", newline="")
    for words, lines in ((["--rank", "0"], 1), ([], 2)):
        with pytest.raises(SystemExit) as ended:
            main(["logs", "plan", "--state-dir", str(tmp_path), *words])
        out = capsys.readouterr().out
        assert ended.value.code == 0 and not obeyed(out) and out.count("\n") == lines


def test_the_program_itself_prints_nothing_of_it(tmp_path: Path) -> None:
    """A model's progress lines and an importer's errors come from files of others."""
    graph = tmp_path / "g\x1b[2J.json"
    graph.write_text('{"\x1b]0;owned\x07": 1}')
    done = subprocess.run(
        [sys.executable, "-m", "placewire.optimizer.cli", "show", str(graph)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 3 and b"\x1b" not in done.stderr + done.stdout


def test_a_document_has_the_version_of_documents_or_its_own() -> None:
    assert json.loads(json_document({"labs": ["a\x7f"]})) == {"version": 1, "labs": ["a\x7f"]}
    assert "\x7f" not in json_document({"labs": ["a\x7f"]})
    assert json.loads(json_document({"version": 7})) == {"version": 7}
