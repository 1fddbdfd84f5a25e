"""A script that is ended has its time to save, is asked once, and is heard to its last line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from placewire.job.contract.specification import (
    SCRIPT_END_SECONDS,
    SCRIPT_WORDS,
    Failed,
    Finished,
    Hold,
    RailInterface,
    RankSpec,
    ScriptSpec,
    parse_rank_event,
)
from tests.free_port import free_port
from tests.paths import ROOT

# These tests run in the idle class, which others on the machine can keep waiting for long.
PATIENCE_SECONDS = 300
# Longer than the program that starts a script, and its launcher, ever gave a placed rank.
SAVES_SECONDS = 6.0
# Saves at SIGTERM, as Lightning and Accelerate do, and says how often it was asked to.
SAVES = f"""
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("trains", flush=True)
while not asked:
    time.sleep(0.05)
print("saves", flush=True)
until = time.monotonic() + {SAVES_SECONDS}
while time.monotonic() < until:
    time.sleep(0.05)
print("saved, asked", len(asked), "times")
"""
PROGRAM = """
import os, sys
from placewire.job.__main__ import main
from placewire.job.script import script
script.SCRIPT_END_SECONDS = float(sys.argv[1])
code = main(sys.argv[2:])
sys.stdout.flush()
os._exit(code)
"""


# Its second process cannot be started, once the first one is under way.
REFUSED = """
import time
from pathlib import Path
from placewire.job.errors import JobError
start = script._start
def refuse(spec, local):
    if local == 0:
        return start(spec, local)
    while not (Path(spec.script).parent / "trains").exists():
        time.sleep(0.05)
    raise JobError("train.py could not be started: no memory")
script._start = refuse
"""


def spec(folder: Path, source: str, **more: Any) -> ScriptSpec:
    (folder / "script.py").write_text(source)
    return ScriptSpec(
        rank=0, world_size=1, device="s1/0", master_address="127.0.0.1",
        master_tcp_port=free_port(), rail_pattern=(0,), script=str(folder / "script.py"),
        rail_interfaces=(RailInterface(rail="a", interface="lo", address=""),), **more,
    )  # fmt: skip


class Running:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def await_line(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return
        raise AssertionError((text, self.lines))

    def ask(self) -> None:
        """As launchers do: over SSH and in a lab the whole process group gets the signal."""
        os.killpg(self.process.pid, signal.SIGTERM)

    def finish(self) -> tuple[int, list[Any]]:
        """Reads to the end. Standard input stays open: its launcher is there to the end."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().splitlines()
        events = [parse_rank_event(line) for line in self.lines if line.startswith("{")]
        return self.process.wait(PATIENCE_SECONDS), events


@contextmanager
def running(
    of: ScriptSpec, folder: Path, end_seconds: float = SCRIPT_END_SECONDS, first: str = ""
) -> Iterator[Running]:
    """first: what the program does before it starts any process."""
    file = folder / "spec.json"
    file.write_text(of.model_dump_json())
    program = PROGRAM.replace("code =", f"{first}\ncode =")
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(end_seconds), str(file)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    patience = threading.Timer(PATIENCE_SECONDS, os.killpg, [process.pid, signal.SIGKILL])
    patience.start()
    try:
        yield Running(process)
    finally:
        patience.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_script_saves_and_is_heard_to_its_last_line(tmp_path: Path) -> None:
    with running(spec(tmp_path, SAVES), tmp_path) as script:
        script.await_line("[0] trains")
        script.ask()
        code, events = script.finish()
    assert code == 128 + signal.SIGTERM
    assert script.lines[-1] == "[0] saved, asked 1 times"
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.what == "stopped by SIGTERM"
    assert not [event for event in events if isinstance(event, Finished)], "it was ended"


def test_whoever_else_ends_it_does_not_ask_again(tmp_path: Path) -> None:
    """The launcher asks again, and the lease runs out, while it saves."""
    with running(spec(tmp_path, SAVES, held_seconds=600.0), tmp_path) as script:
        script.await_line("[0] trains")
        script.ask()
        script.await_line("[0] saves")
        script.ask()
        assert script.process.stdin is not None
        script.process.stdin.write(Hold(held_seconds=0.0).model_dump_json() + "\n")
        script.process.stdin.flush()
        code, events = script.finish()
    assert code == 128 + signal.SIGTERM
    assert script.lines[-1] == "[0] saved, asked 1 times"
    assert [event.what for event in events if isinstance(event, Failed)] == ["stopped by SIGTERM"]


def test_where_one_process_fails_the_others_save(tmp_path: Path) -> None:
    """The failure is told at once, so that the other servers do not wait for them."""
    trains = tmp_path / "trains"
    source = SAVES.replace(
        'print("trains", flush=True)',
        f"""
if os.environ["RANK"] == "1":
    while not os.path.exists({str(trains)!r}): time.sleep(0.05)
    sys.exit(3)
open({str(trains)!r}, "w").close()
""",
    )
    with running(spec(tmp_path, source, processes=2), tmp_path) as script:
        script.await_line('"failed"')
        assert "[0] saved, asked 1 times" not in script.lines
        script.await_line("[0] saves")
        script.ask()  # Another server failed as well.
        code, events = script.finish()
    assert code in (1, 128 + signal.SIGTERM) and "[0] saved, asked 1 times" in script.lines
    first = next(event for event in events if isinstance(event, Failed))
    assert first.what.endswith("script.py with RANK 1 ended with 3")


def test_where_one_process_cannot_be_started_it_is_told_before_the_others_save(
    tmp_path: Path,
) -> None:
    trains = f"open({str(tmp_path / 'trains')!r}, 'w').close()"
    source = SAVES.replace("while not asked:", f"{trains}\nwhile not asked:")
    with running(spec(tmp_path, source, processes=2), tmp_path, first=REFUSED) as script:
        script.await_line('"failed"')
        assert "[0] saved, asked 1 times" not in script.lines
        code, events = script.finish()
    assert code == 1 and "[0] saved, asked 1 times" in script.lines
    failures = [event.what for event in events if isinstance(event, Failed)]
    assert failures == ["train.py could not be started: no memory"]


def test_a_command_before_the_script_that_ends_at_once_takes_nothing_from_it(
    tmp_path: Path,
) -> None:
    """The shell has no handler, and does not wait."""
    shell = ("sh", "-c", '"$@"; true', "sh", sys.executable)
    with running(spec(tmp_path, SAVES, python=shell), tmp_path) as script:
        script.await_line("[0] trains")
        script.ask()
        script.finish()
    assert script.lines[-1] == "[0] saved, asked 1 times"


def test_what_ends_because_it_was_asked_to_is_no_failure(tmp_path: Path) -> None:
    """One process does not handle the signal, and ends before the other."""
    source = f"import os, time\nif os.environ['RANK'] == '1': time.sleep(600)\n{SAVES}"
    with running(spec(tmp_path, source, processes=2), tmp_path) as script:
        script.await_line("[0] trains")
        script.ask()
        _, events = script.finish()
    assert script.lines[-1] == "[0] saved, asked 1 times"
    assert [event.what for event in events if isinstance(event, Failed)] == ["stopped by SIGTERM"]


def test_a_slow_reader_gets_what_was_printed_last(tmp_path: Path) -> None:
    """It is more than a pipe holds, and the script is gone before it was read."""
    source = """
import os, signal, time
def saves(*_):
    for line in range(1000):
        print(str(line).ljust(99, "."))
    raise SystemExit
signal.signal(signal.SIGTERM, saves)
print("trains", os.getpid(), flush=True)
time.sleep(600)
"""
    with running(spec(tmp_path, source), tmp_path) as script:
        script.await_line("[0] trains")
        pid = int(script.lines[-1].split()[-1])
        script.ask()
        script.await_line('"failed"')
        await_end(pid)
        time.sleep(1)
        script.finish()
    assert script.lines[-1].startswith("[0] 999...")


def await_end(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_does_not_end_in_time_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    source = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("trains", left.pid, flush=True)
time.sleep(600)
"""
    with running(spec(tmp_path, source), tmp_path, end_seconds=1.0) as script:
        script.await_line("[0] trains")
        pid = int(script.lines[-1].split()[-1])
        script.ask()
        code, _ = script.finish()
    assert code == 128 + signal.SIGTERM
    await_end(pid)


def test_what_ends_at_once_costs_no_time(tmp_path: Path) -> None:
    """Though what it left behind is in other process groups, and ignores SIGTERM."""
    source = """
import signal, subprocess, time
ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([__import__("sys").executable, "-c", ignoring], start_new_session=True)
print("trains", flush=True)
time.sleep(600)
"""
    with running(spec(tmp_path, source), tmp_path, end_seconds=PATIENCE_SECONDS) as script:
        script.await_line("[0] trains")
        script.ask()
        asked = time.monotonic()
        script.finish()
    assert time.monotonic() - asked < PATIENCE_SECONDS / 2


@pytest.mark.parametrize("text", ["train.py", '"kind":"torchrun"', '\\"kind":"torchrun\\'])
def test_a_script_s_specification_is_known_by_its_words(tmp_path: Path, text: str) -> None:
    of = spec(tmp_path, "", arguments=(text,))
    assert SCRIPT_WORDS in of.model_dump_json()
    rank = RankSpec(
        kind="placed", rank=0, world_size=1, device="s1/0", master_address="127.0.0.1",
        master_tcp_port=1, rail_interfaces=(), placement_file=text, model=text, steps=1,
    )  # fmt: skip
    assert SCRIPT_WORDS not in rank.model_dump_json()
