"""Tests that the command line refuses wrong arguments with one line, an exit code, no traceback."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from placewire.controller.agents.authority import Authority
from placewire.controller.cli import main
from placewire.controller.commands import apply
from placewire.controller.errors import JournalFailed, UsageError
from tests.controller.plans import plan_document


def _run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[object, str]:
    """(exit code, standard error) of the command with these arguments."""
    with pytest.raises(SystemExit) as raised:
        main([str(word) for word in words])
    return raised.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    "place", ["127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1", "h:²", "h:-1", "h:" + "9" * 5000, ""]
)
def test_a_port_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    plan_file = tmp_path / "plan.yaml"
    plan_file.write_text(yaml.safe_dump(plan_document()))
    code, error = _run(
        capsys, "preview", plan_file, "--no-lab", "--state-dir", tmp_path / "s", "--listen", place
    )
    assert code == 2 and "give HOST:PORT" in error and "65535" in error
    assert not (tmp_path / "s").exists(), "nothing is made before the arguments are right"


@pytest.mark.parametrize("days", ["-1", "0", "nan", "inf", "1e300", "3651", "soon"])
def test_days_that_no_certificate_can_live_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], days: str
) -> None:
    words = ("authority", "issue", "s1", "--out", tmp_path / "o", "--state-dir", tmp_path / "s")
    code, error = _run(capsys, *words, f"--days={days}")
    assert code == 2 and "number of days" in error
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("server", ["../../x", "..", "/etc/x", "S1", "", "a" * 21, "a.b", "a\n"])
def test_what_is_no_server_gets_no_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: str
) -> None:
    out = tmp_path / "a" / "b"
    code, error = _run(
        capsys, "authority", "issue", "--out", out, "--state-dir", tmp_path / "s", "--", server
    )
    assert code == 2 and "is not a name" in error
    assert sorted(p.name for p in tmp_path.rglob("*.crt")) == ["authority.crt"]


@pytest.mark.parametrize("out", ["file", "file/below", "s/ca"])
def test_a_folder_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    (tmp_path / "file").write_text("theirs")
    Authority.load(tmp_path / "s/ca")
    words = ("authority", "issue", "s1", "--state-dir", tmp_path / "s", "--out", tmp_path / out)
    code, error = _run(capsys, *words)
    assert code == 2 and str(tmp_path / out) in error
    assert (tmp_path / "file").read_text() == "theirs"


def test_a_certificate_is_issued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("authority", "issue", "gpu-node-1", "--state-dir", tmp_path / "s")
    code, error = _run(capsys, *words, "--out", tmp_path / "o", "--days", "3650")
    assert (code, error) == (0, "")
    assert {p.name for p in (tmp_path / "o").iterdir()} == {
        "gpu-node-1.crt", "gpu-node-1.key", "authority.crt",
    }  # fmt: skip


def test_what_a_command_tells_can_be_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> Any:
        with pytest.raises(SystemExit) as raised:
            main([*words, "--json"])
        assert raised.value.code == 0
        return json.loads(capsys.readouterr().out)

    state, out = ("--state-dir", str(tmp_path / "s")), tmp_path / "o"
    issued = told("authority", "issue", "s1", "--out", str(out), *state)
    assert issued["server"] == "s1" and all(Path(file).exists() for file in issued["files"])
    denied = told("authority", "deny", "s1", *state)
    assert denied == {"version": 1, "server": "s1", "denied": 1}
    assert isinstance(told("lab", "list")["labs"], list)


def test_an_authority_whose_key_is_broken_is_told(tmp_path: Path) -> None:
    Authority.load(tmp_path)
    (tmp_path / "authority.key").write_text("no key")
    with pytest.raises(UsageError, match="certificate authority cannot be used"):
        Authority.load(tmp_path)


def test_a_command_whose_output_nobody_reads_ends_as_ever() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "placewire.controller.cli", "apply", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("closed", "told", "complaint"),
    [
        (">&-", "", "controller: "),
        ("2>&-", '{\n  "version": 1,\n  "error": ', ""),
        ("<&- >&-", "", "controller: "),
        ("<&- >&- 2>&-", "", ""),
    ],
)
def test_a_stream_that_is_closed_is_written_to_by_nobody_and_changes_no_status(
    tmp_path: Path, closed: str, told: str, complaint: str
) -> None:
    """Its descriptor would be the next file's; an error would be printed before the document."""
    words = ["-m", "placewire.controller.cli", "status", str(tmp_path / "none.yaml"), "--json"]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 3
    assert done.stdout.startswith(told) and done.stderr.startswith(complaint)
    assert bool(told) == bool(done.stdout) and bool(complaint) == bool(done.stderr), done


def test_what_others_start_has_the_missing_streams_too() -> None:
    code = """
import subprocess
from placewire.standard_streams import open_missing_streams
open_missing_streams()
with open("/etc/hostname") as next_file:
    subprocess.run(["sh", "-c", "readlink /proc/$$/fd/2 >&3"], pass_fds=[3])
    assert next_file.fileno() > 2
"""
    command = ["sh", "-c", 'exec "$@" 3>&1 <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "/dev/null\n")


def test_output_that_a_full_disk_does_not_take_ends_nothing(tmp_path: Path) -> None:
    """As with `controller destroy PLAN >> log`, where the network must be undone all the same."""
    code = """
import pathlib, sys
from placewire.controller.commands.lasting_output import make_output_last
make_output_last()
for _ in range(3):
    print("restoring", flush=True)
    print("restoring", file=sys.stderr)
pathlib.Path(sys.argv[1]).touch()
"""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", code, str(tmp_path / "restored")]
        done = subprocess.run(command, stdout=full, stderr=full)
    assert done.returncode == 0 and (tmp_path / "restored").exists()


def test_a_document_that_a_full_disk_does_not_take_is_no_success(tmp_path: Path) -> None:
    for asked, status in ((["--json"], 1), ([], 0)):
        words = ["history", *asked, "--state-dir", str(tmp_path / "s")]
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "placewire.controller.cli", *words]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == status
        assert done.stderr == (
            "controller: standard output: No space left on device; not all of it is written\n"
        )


def test_output_that_another_program_made_non_blocking_ends_nothing() -> None:
    """As a terminal or a pipe that it shares with this one: a write without room is no error."""
    code = """
from placewire.controller.commands.lasting_output import make_output_last
make_output_last()
for number in range(20_000):
    print(number, "restoring", flush=True)
"""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with (
        os.fdopen(reader, encoding="utf-8") as read,
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE
        ) as running,
    ):
        os.close(writer)
        assert running.stderr is not None
        time.sleep(1.0)  # The pipe is full by now, or is soon.
        lines = read.read().splitlines()
        error = running.stderr.read().decode()
    assert (running.returncode, error) == (0, "")
    assert lines == [f"{number} restoring" for number in range(20_000)]


@pytest.mark.parametrize("command", ["preview", "apply"])
def test_the_plan_is_not_replaced_by_what_a_command_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    plan, link = tmp_path / "plan.yaml", tmp_path / "link"
    plan.write_text("theirs")
    link.symlink_to(plan)
    for out in (plan, link):
        code, error = _run(
            capsys, command, plan, "--out", out, "--no-lab", "--state-dir", tmp_path / "s"
        )
        assert code == 2 and f"--out {out}: is the file {plan} itself" in error
    assert plan.read_text() == "theirs"


def test_a_report_that_cannot_be_written_is_said_before_or_after_and_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_file = tmp_path / "plan.yaml"
    plan_file.write_text(yaml.safe_dump(plan_document()))
    state = ("--state-dir", tmp_path / "s")
    code, error = _run(capsys, "apply", plan_file, "--yes", "--out", tmp_path, *state)
    assert code == 2 and "is a folder" in error and not (tmp_path / "s").exists()
    report, tools = MagicMock(), MagicMock()
    report.plan_name, tools.logs = "small", tmp_path / "logs"
    report.model_dump_json.return_value = '{"report": 1}'
    tools.journal.record_run.side_effect = JournalFailed("disk is full")
    apply._keep(report, tools, Path("/dev/full"))
    told = capsys.readouterr().err
    assert "disk is full" in told and "/dev/full: not written: No space left on device" in told
    (kept,) = (tmp_path / "logs" / "small").iterdir()
    assert json.loads(kept.read_text()) == {"report": 1} and f"is in {kept}" in told
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/proc/none")
    monkeypatch.chdir("/proc")
    tools.logs = Path("/proc/none")
    apply._keep(report, tools, None)
    assert '{"report": 1}' in capsys.readouterr().err, "where no folder takes it"


def _issue(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> tuple[object, str]:
    return _run(capsys, "authority", "issue", "s1", "--out", out, "--state-dir", tmp_path / "s")


def test_a_certificate_goes_through_no_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text("theirs")
    for name in ("authority.crt", "s1.crt", "s1.key"):
        (out / name).symlink_to(victim)
    assert _issue(capsys, tmp_path, out)[0] == 0
    assert victim.read_text() == "theirs"
    written = out / "authority.crt"
    assert not written.is_symlink() and stat.S_IMODE(written.stat().st_mode) == 0o644
    assert written.read_bytes() == (tmp_path / "s" / "ca" / "authority.crt").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_key_goes_into_no_folder_of_somebody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, 1000, 1000)
    code, error = _issue(capsys, tmp_path, out)
    assert code == 2 and f"--out {out}: " in error and "another user's" in error
    assert "give a folder that you own" in error and list(out.iterdir()) == []


def test_text_that_the_terminal_s_encoding_lacks_ends_nothing(tmp_path: Path) -> None:
    """As with LANG=en_US.ISO-8859-1: what a rank prints must not end the training."""
    code = """
import sys
from pathlib import Path
from placewire.controller.commands.lasting_output import make_output_last
from placewire.controller.records.run_log import run_log
from placewire.controller.show.story import Show
make_output_last()
Show().printed(0, "epoch 1 \\u2713")
print("told \\u2713", file=sys.stderr)
with run_log(Path(sys.argv[1]), "p") as log:
    log.write(0, "epoch 1 \\u2713")
    log.write(0, "half a pair \\ud83d")
"""
    around = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1", "LC_ALL": "POSIX"}
    command = [sys.executable, "-X", "utf8=0", "-c", code, str(tmp_path)]
    around["PYTHONCOERCECLOCALE"] = "0"
    done = subprocess.run(command, capture_output=True, env=around)
    assert done.returncode == 0, done.stderr.decode()
    assert b"epoch 1 \\u2713" in done.stdout and b"told \\u2713" in done.stderr
    (log,) = (tmp_path / "p").iterdir()
    first, second = log.read_text(encoding="utf-8").splitlines()
    assert first.endswith("epoch 1 \u2713") and "half a pair \\ud83d" in second
