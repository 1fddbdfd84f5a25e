"""`apply --detach` goes on in the background; `attach` shows it, ends it, and says how it ended."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from placewire.controller.cli import main
from placewire.controller.detached import start
from placewire.controller.records.detached_output import latest_output, new_output, process_of
from placewire.controller.records.plan_files import files_of, is_written, new_file
from tests.controller.memory_cluster import MemoryCluster
from tests.paths import ROOT

_SECONDS = 60.0
# Ends with 42 where it is interrupted, after it has said so.
_PATIENT = """
import signal, sys, time
def interrupted(*_):
    print("putting back", flush=True)
    sys.exit(42)
signal.signal(signal.SIGINT, interrupted)
print("begun", flush=True)
time.sleep(600)
"""


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """The folder of all outputs; what still runs after a test is killed."""
    folder = tmp_path / "state" / "logs"
    yield folder
    for output in files_of(folder, "small", ".out"):
        if (process := process_of(output)) is not None:
            os.killpg(os.getsid(process), signal.SIGKILL)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def begun(output: Path) -> bool:
    return "begun\n" in output.read_text()


def attached(logs: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["attach", "small", "--state-dir", str(logs.parent), *arguments])
    return int(ended.value.code or 0)


def test_attach_shows_all_of_it_and_ends_as_it_did(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import sys, time; print('one', flush=True); time.sleep(.3); sys.exit('two\\x1b[2J')"
    start([sys.executable, "-c", program], logs, "small")
    for _ in range(2):  # Also once it has ended.
        assert attached(logs) == 1
        first, *rest = capsys.readouterr().out.splitlines()
        assert first.startswith("-- process ") and "-c import sys" in first
        assert " runs process " in first
        assert rest == ["one", "two\\x1b[2J", "-- ended with exit code 1"]


def test_nothing_of_it_is_left_to_whoever_started_it(logs: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        output = start([sys.executable, "-c", _PATIENT], logs, "small")
        gc.collect()
    wait_until(lambda: begun(output))
    assert not [one for one in found if issubclass(one.category, ResourceWarning)]
    process = process_of(output)
    assert process is not None
    streams = [str(Path(f"/proc/{os.getsid(process)}/fd/{k}").readlink()) for k in range(3)]
    assert streams == [os.devnull, str(output), os.devnull]


def test_what_it_does_not_need_is_closed(logs: Path) -> None:
    """Else who waits for the end of a pipe, or for `flock FILE controller apply --detach`, waits
    for the end of the training."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    start([sys.executable, "-c", _PATIENT], logs, "small")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert select.select([pipe], [], [], 5)[0] and pipe.read() == b""


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_it_begins_where_streams_are_closed(logs: Path, closed: str) -> None:
    """The file of its output is then 0, or takes another stream's number."""
    program = (
        "import sys; from pathlib import Path; from placewire.controller.detached import start; "
        "start([sys.executable, '-c', sys.argv[2]], Path(sys.argv[1]), 'small')"
    )
    begin = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
    subprocess.run([*begin, logs, _PATIENT], check=True, cwd=ROOT, timeout=_SECONDS)
    (output,) = files_of(logs, "small", ".out")
    wait_until(lambda: begun(output))


def test_stop_interrupts_it_and_shows_what_it_does_then(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = start([sys.executable, "-c", _PATIENT], logs, "small")
    wait_until(lambda: begun(output))
    assert attached(logs, "--stop") == 42
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "begun", "putting back", "-- ended with exit code 42",
    ]  # fmt: skip
    assert attached(logs, "--stop") == 2
    assert "it has ended already" in capsys.readouterr().err


def test_what_was_killed_is_told_as_that(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = start([sys.executable, "-c", _PATIENT], logs, "small")
    wait_until(lambda: begun(output))
    process = process_of(output)
    assert process is not None and os.getsid(process) != os.getsid(0)
    os.killpg(os.getsid(process), signal.SIGKILL)
    wait_until(lambda: not is_written(output))
    assert attached(logs) == 1
    assert "it was ended from outside before it could say how" in capsys.readouterr().err


def test_another_process_is_never_signalled(logs: Path) -> None:
    path, descriptor = new_output(logs, "small")
    os.write(descriptor, b"-- process 1 runs process 2: whose numbers others have by now\n")
    assert is_written(path) and process_of(path) is None
    with pytest.raises(SystemExit) as ended:
        main(["attach", "small", "--stop", "--state-dir", str(logs.parent)])
    assert ended.value.code == 1
    os.close(descriptor)


def test_one_that_goes_on_is_attached_to_whatever_was_begun_since(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was refused because the first one goes on. No later one removes its output."""
    output = start([sys.executable, "-c", _PATIENT], logs, "small")
    for _ in range(25):
        _, descriptor = new_file(logs, "small", ".out")
        os.write(descriptor, b"refused\n")
        os.close(descriptor)
    assert latest_output(logs, "small") == output
    monkeypatch.chdir(logs)  # Another folder than the one that it was begun in.
    wait_until(lambda: begun(output))
    with pytest.raises(SystemExit) as ended:
        main(["attach", "small", "--stop", "--state-dir", "../../state"])
    assert ended.value.code == 42 and "putting back" in capsys.readouterr().out


def test_it_can_be_stopped_as_soon_as_it_is_begun_and_without_the_process_beside_it(
    logs: Path,
) -> None:
    output = start([sys.executable, "-c", _PATIENT], logs, "small")
    beside = process_of(output)
    assert beside is not None
    wait_until(lambda: begun(output))
    os.kill(beside, signal.SIGKILL)
    wait_until(lambda: process_of(output) not in (None, beside))
    assert is_written(output)
    assert attached(logs, "--stop") == 1  # Nobody is left to write down how it ends.
    assert not is_written(output)


def test_a_closed_session_ends_it_in_order(logs: Path) -> None:
    program = _PATIENT.replace("SIGINT", "SIGHUP")
    output = start([sys.executable, "-c", program], logs, "small")
    wait_until(lambda: begun(output))
    process = process_of(output)
    assert process is not None
    os.kill(process, signal.SIGHUP)
    assert attached(logs) == 42


def test_ctrl_c_ends_the_showing_alone(logs: Path) -> None:
    output = start([sys.executable, "-c", _PATIENT], logs, "small")
    wait_until(lambda: begun(output))
    words = ["attach", "small", "--state-dir", str(logs.parent)]
    shown = subprocess.Popen(
        [sys.executable, "-m", "placewire.controller.cli", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    with shown:
        assert shown.stdout is not None and shown.stderr is not None
        shown.stdout.readline()
        shown.send_signal(signal.SIGINT)
        assert shown.wait(_SECONDS) == 130
        assert "no longer shown; it goes on" in shown.stderr.read()
    assert is_written(output) and attached(logs, "--stop") == 42


@pytest.mark.parametrize(
    ("plan", "arguments", "code", "told"),
    [
        ("good", [], 2, "--detach leaves nobody to ask"),
        ("good", ["--yes", "--out", "none/run.json"], 2, "--out none/run.json"),
        ("wrong", ["--yes"], 3, "network.on_exit"),
    ],
)
def test_mistakes_are_told_at_once_and_nothing_is_begun(
    tmp_path: Path, plan: str, arguments: list[str], code: int, told: str
) -> None:
    cluster = MemoryCluster(tmp_path)
    file = cluster.plan(**({} if plan == "good" else {"on_exit": "never"}))
    done = detached_apply(cluster, file, *arguments)
    assert done.returncode == code and told in done.stderr
    assert not list(cluster.state.glob("logs/*/*"))


def words_of(cluster: MemoryCluster, file: Path, *arguments: str) -> list[str]:
    options = ["--no-lab", "--state-dir", cluster.state, "--listen", f"127.0.0.1:{cluster.port}"]
    return [str(word) for word in ("apply", file, "--detach", *options, *arguments)]


def detached_apply(
    cluster: MemoryCluster, file: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "placewire.controller.cli", *words_of(cluster, file, *arguments)],
        capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=_SECONDS,
    )  # fmt: skip


def test_a_second_one_is_told_at_once_of_one_that_has_just_begun(tmp_path: Path) -> None:
    """That one may not have the lock yet: it still imports its modules."""
    cluster = MemoryCluster(tmp_path)
    output = start([sys.executable, "-c", _PATIENT], cluster.state / "logs", "memory")
    process = process_of(output)
    assert process is not None
    try:
        done = detached_apply(cluster, cluster.plan(), "--yes", "--network-only")
        assert done.returncode == 2
        assert f"under way: process {process}, begun with --detach" in done.stderr
        assert files_of(cluster.state / "logs", "memory", ".out") == [output]
    finally:
        os.killpg(os.getsid(process), signal.SIGKILL)


def test_a_second_one_is_told_also_while_the_first_has_not_said_its_processes(
    tmp_path: Path,
) -> None:
    cluster = MemoryCluster(tmp_path)
    output, descriptor = new_output(cluster.state / "logs", "memory")
    try:
        done = detached_apply(cluster, cluster.plan(), "--yes", "--network-only")
        assert done.returncode == 2
        assert "under way: a command, begun with --detach" in done.stderr
        assert files_of(cluster.state / "logs", "memory", ".out") == [output]
    finally:
        os.close(descriptor)


def test_of_two_at_the_same_moment_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = MemoryCluster(tmp_path)
    words = words_of(cluster, cluster.plan(), "--yes", "--network-only")
    begun_by: list[str] = []

    def begin(command: list[str], folder: Path, plan_name: str) -> Path:
        begun_by.append(plan_name)
        if len(begun_by) == 1:  # The first has looked, and nothing of it is there to see yet.
            with pytest.raises(SystemExit) as second:
                main(words)
            assert second.value.code == 2
            assert f"under way: process {os.getpid()}" in capsys.readouterr().err
        return folder / plan_name

    monkeypatch.setattr("placewire.controller.detached.start", begin)
    with pytest.raises(SystemExit) as first:
        main(words)
    assert first.value.code == 0 and begun_by == ["memory"]


def test_a_network_is_applied_in_the_background(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    with cluster.running():
        file = cluster.plan()
        done = detached_apply(cluster, file, "--yes", "--network-only", "--no-measurement")
        assert done.returncode == 0, done.stderr
        assert "controller attach memory" in done.stdout
        shown = subprocess.run(
            [sys.executable, "-m", "placewire.controller.cli", "attach", "memory",
             "--state-dir", str(cluster.state)],
            capture_output=True, text=True, cwd=ROOT, timeout=_SECONDS,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert "changes made" in shown.stdout and "ended with exit code 0" in shown.stdout
        assert {lease.phase for lease in cluster.leases.values()} == {"committed"}
