"""Ranks of real processes: followed, blamed and ended. Small programs stand in for the rank's own
where a rank must misbehave; one test runs the real one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewire.controller.errors import JobFailed, UsageError
from placewire.controller.lab.lab import Lab
from placewire.controller.lab.record import LabRecord, ServerRecord
from placewire.controller.launch.lab import LabLauncher
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.launch.ranks import run_ranks
from placewire.job.contract.specification import RankEvent, StepDone
from tests.controller.launch.rank_programs import (
    GOES_ON,
    PRELUDE,
    kill_once_two_ranks_are_heard,
    specs,
)
from tests.paths import ROOT

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Makes two empty namespaces: as much of a lab as a rank sees."""
    name = f"launch{os.getpid()}"
    servers = tuple(
        ServerRecord(name=s, namespace=f"pw-{name}-{s}", management_address="10.9.0.1")
        for s in ("s1", "s2")
    )
    spaces = tuple(server.namespace for server in servers)
    try:
        for space in spaces:
            subprocess.run(["ip", "netns", "add", space], check=True)
            subprocess.run(["ip", "-n", space, "link", "set", "lo", "up"], check=True)
        yield Lab(
            LabRecord(
                name=name,
                servers=servers,
                controller_namespace=spaces[0],
                controller_address="10.9.0.254",
                namespaces=spaces,
            )
        )
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space])


class Stage:
    """Runs stand-ins of this source and keeps what they said."""

    def __init__(self, lab: Lab, folder: Path, source: str) -> None:
        self.file = folder / "stand_in.py"
        self.file.write_text(PRELUDE + source)
        self.launcher = LabLauncher(lab, program=(str(self.file),), workdir=folder)
        self.seen: list[RankEvent] = []
        self.printed: list[tuple[int, str, bool]] = []
        self.gone: list[int] = []

    async def run(self, count: int = 2, silence_seconds: float = 60) -> list[RankEvent]:
        await run_ranks(
            self.launcher,
            specs(count),
            self.seen.append,
            on_line=lambda *line: self.printed.append(line),
            on_gone=self.gone.append,
            silence_seconds=silence_seconds,
        )
        return self.seen

    def left(self) -> list[int]:
        """Returns living processes that run this file."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if str(self.file).encode() in line:
                    found.append(int(entry.name))
        return found


async def test_events_come_back_in_order_beside_what_the_model_prints(
    lab: Lab, tmp_path: Path
) -> None:
    source = "print('hello'); step(0); print('what', file=sys.stderr); step(1); finish()"
    stage = Stage(lab, tmp_path, source)
    events = await stage.run()
    said = [(rank, *line) for rank in (0, 1) for line in (("hello", False), ("what", True))]
    assert sorted(stage.printed) == said and not stage.gone
    for rank in (0, 1):
        own = [event for event in events if event.rank == rank]
        assert [event.event for event in own] == ["step", "step", "finished"]


async def test_a_rank_is_on_its_server_s_network_without_privileges(
    lab: Lab, tmp_path: Path
) -> None:
    source = """
ns = os.stat("/proc/self/ns/net").st_ino
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":", 1) for line in lines)
held = sum(int(status[key], 16) for key in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"))
say(event="step", step=ns, seconds=held + 1 - int(status["NoNewPrivs"]))
import subprocess
assert subprocess.run(["ip", "link", "add", "x", "type", "bridge"], capture_output=True).returncode
finish()
"""
    events = await Stage(lab, tmp_path, source).run()
    steps = {event.rank: event for event in events if isinstance(event, StepDone)}
    for rank, server in enumerate(lab.record.servers):
        assert steps[rank].step == Path(f"/run/netns/{server.namespace}").stat().st_ino
        assert steps[rank].seconds == 0, "no capability, and no way to gain one"


async def test_a_killed_rank_is_named_and_its_peers_are_ended(lab: Lab, tmp_path: Path) -> None:
    """The peer fails because of the killed one, and louder; the killed one is to blame."""
    flag = tmp_path / "killed"
    source = f"""
print("working", file=sys.stderr, flush=True)
if rank == 1:
    open({str(flag)!r} + ".part", "w").write(str(os.getpid()))
    os.rename({str(flag)!r} + ".part", {str(flag)!r}); os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    while not os.path.exists({str(flag)!r}): time.sleep(0.01)
    while os.path.exists("/proc/" + open({str(flag)!r}).read()): time.sleep(0.01)
    say(event="failed", what="peer lost"); sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
    stage = Stage(lab, tmp_path, source)
    started = time.monotonic()
    with pytest.raises(JobFailed) as failure:
        await stage.run(count=3)
    assert time.monotonic() - started < 60, "even a rank that ignores SIGTERM"
    assert failure.value.exit_code == 7
    assert failure.value.where == "s2"
    assert "rank 1 was killed by SIGKILL" in failure.value.what
    assert "working" in failure.value.what
    assert stage.left() == []
    assert 1 in stage.gone and 2 not in stage.gone, "2 was ended with the job"


async def test_a_failure_says_why_and_what_to_do(lab: Lab, tmp_path: Path) -> None:
    source = """
if rank == 0: time.sleep(60)
print("Traceback: far down", file=sys.stderr)
say(event="failed", what="structure hash differs", remedy="install the same torch")
sys.exit(1)
"""
    with pytest.raises(JobFailed) as failure:
        await Stage(lab, tmp_path, source).run()
    assert "s2: rank 1 ended with 1: structure hash differs" in str(failure.value)
    assert "Traceback: far down" in failure.value.what
    assert failure.value.remedy == "install the same torch; rank 0 (s1) was ended"


async def test_ending_before_having_finished_is_a_failure(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="rank 0 ended with 0 before it had finished"):
        await Stage(lab, tmp_path, "step(0)\nif rank: finish()").run()


async def test_silence_ends_the_job(lab: Lab, tmp_path: Path) -> None:
    stage = Stage(lab, tmp_path, "step(0); time.sleep(60)")
    with pytest.raises(JobFailed, match="no rank said anything"):
        await stage.run(silence_seconds=1)
    assert stage.left() == []


async def test_an_interrupt_ends_every_rank_and_what_it_started(lab: Lab, tmp_path: Path) -> None:
    source = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", sys.argv[0]])
step(0); time.sleep(60)
"""
    stage = Stage(lab, tmp_path, source)
    work = asyncio.create_task(stage.run())
    while len(stage.seen) < 2:
        await asyncio.sleep(0.02)
    assert len(stage.left()) == 4
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not stage.gone
    async with asyncio.timeout(30):
        while stage.left():  # What a rank started is killed with it, and dies a moment later.
            await asyncio.sleep(0.02)


async def test_an_interrupt_while_ranks_are_ended_leaves_none(lab: Lab, tmp_path: Path) -> None:
    """The ranks handle SIGTERM, and go on."""
    flag = tmp_path / "handled"
    source = f"""
signal.signal(signal.SIGTERM, lambda *_: step(1))
if rank == 1:
    while not os.path.exists({str(flag)!r}): time.sleep(0.01)
    sys.exit(1)
step(0); open({str(flag)!r}, "w").close()
while True: time.sleep(60)
"""
    stage = Stage(lab, tmp_path, source)
    work = asyncio.create_task(stage.run())
    while sum(event.event == "step" for event in stage.seen) < 2:
        await asyncio.sleep(0.02)
        assert not work.done(), work
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert stage.left() == []


async def test_what_the_listener_raises_ends_the_job(lab: Lab, tmp_path: Path) -> None:
    stage = Stage(lab, tmp_path, "step(0); time.sleep(60)")

    def broken(event: RankEvent) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_ranks(stage.launcher, specs(), broken)
    assert stage.left() == []


async def test_a_frozen_rank_is_named_by_what_its_peer_says(lab: Lab, tmp_path: Path) -> None:
    source = """
if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
print("waiting for rank 1", file=sys.stderr, flush=True)
say(event="failed", what="rank 1 is lost: no sign of life", lost_rank=1, remedy="look at it")
sys.exit(1)
"""
    stage = Stage(lab, tmp_path, source)
    with pytest.raises(JobFailed) as failure:
        await stage.run()
    assert failure.value.where == "s2" and failure.value.rank == 1
    assert failure.value.what.startswith("rank 1 is lost: no sign of life (as rank 0 says)")
    assert failure.value.remedy == "look at it; rank 1 (s2) was ended"
    assert stage.left() == []


CONTROLLER = """
import asyncio, sys
sys.path[:0] = {path!r}
from pathlib import Path
from placewire.controller.lab.lab import Lab
from placewire.controller.lab.record import LabRecord
from placewire.controller.launch.lab import LabLauncher
from placewire.controller.launch.ranks import run_ranks
from tests.controller.launch.rank_programs import specs
lab = Lab(LabRecord.model_validate_json({record!r}))
launcher = LabLauncher(lab, program=({file!r},), workdir=Path({folder!r}))
say = lambda event: print(event.rank, flush=True)
asyncio.run(run_ranks(launcher, specs(), say, held_seconds=lambda: {held}))
"""


def kill_a_controller(lab: Lab, stage: Stage, held_seconds: float) -> None:
    script = CONTROLLER.format(
        path=sys.path,
        record=lab.record.model_dump_json(),
        file=str(stage.file),
        folder=str(stage.file.parent),
        held=held_seconds,
    )
    kill_once_two_ranks_are_heard(script)


def steps_of(stage: Stage) -> list[int]:
    return [len(stage.file.with_suffix(f".py.{rank}").read_text()) for rank in (0, 1)]


async def test_ranks_outlive_the_controller_until_their_time_is_over(
    lab: Lab, tmp_path: Path
) -> None:
    stage = Stage(lab, tmp_path, GOES_ON)
    # Counted since ranks last heard the controller, which is some time before the kill.
    kill_a_controller(lab, stage, held_seconds=8)
    killed, before = time.monotonic(), steps_of(stage)
    assert len(stage.left()) == 2
    assert [rank.server for rank in stage.launcher.left()] == ["s1", "s2"]
    while stage.left() and time.monotonic() < killed + 60:
        await asyncio.sleep(0.05)
    assert stage.left() == [] and time.monotonic() > killed + 1.5
    assert all(now > then + 3 for now, then in zip(steps_of(stage), before, strict=True))


async def test_ranks_that_are_left_are_found_and_ended(lab: Lab, tmp_path: Path) -> None:
    stage = Stage(lab, tmp_path, GOES_ON)
    kill_a_controller(lab, stage, held_seconds=60)
    left = stage.launcher.left()
    assert sorted(rank.pid for rank in left) == sorted(stage.left()) and len(left) == 2
    assert all(0 < rank.seconds < 60 for rank in left)
    stage.launcher.end_left(left)
    assert stage.left() == [] == list(stage.launcher.left())


async def test_the_real_rank_program_says_what_it_lacks(lab: Lab) -> None:
    """It starts, imports torch and reads its specification without privileges."""
    with pytest.raises(JobFailed, match=r"rank 0 ended with 1: .*none"):
        await run_ranks(LabLauncher(lab), specs(1), lambda event: None)


async def test_an_interpreter_that_is_not_there(lab: Lab, tmp_path: Path) -> None:
    launcher = LabLauncher(lab, python="/no/such/python", workdir=tmp_path)
    with pytest.raises(JobFailed, match=r"(?s)rank \d ended with .*/no/such/python"):
        await run_ranks(launcher, specs(), lambda event: None)


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (["/no/python", "-i"], r"'/no/python -i' runs no Python there: .*No such file"),
        (["env", "false"], "'env false' runs no Python there: exit 1"),
        (["echo"], "'echo' runs no Python there"),
        (["env", "-C", "/", sys.executable], "'ddp.py' is not found there by 'env -C / "),
        ([sys.executable, "-I", "-S"], "has no torch there"),
        ([sys.executable, "-m"], "module 'ddp.py' is not found there by '.* -m'"),
    ],
)
def test_a_script_s_interpreter_is_asked_before_anything_starts(
    lab: Lab, python: list[str], words: str
) -> None:
    with pytest.raises(UsageError, match=f"job.python: .*{words}"):
        LabLauncher(
            lab, workdir=ROOT / "examples", script="ddp.py", script_python=python
        ).require_ready()


def test_a_script_s_interpreter_that_can_is_ready(lab: Lab) -> None:
    def ready(words: list[str], **environment: str) -> None:
        LabLauncher(
            lab, workdir=ROOT / "examples", script="ddp.py", script_python=words,
            environment=environment,
        ).require_ready()  # fmt: skip

    ready(["env", sys.executable])
    ready(["env", sys.executable, "-X", "dev", "-m", "cProfile"])
    # With the plan's own variables, as the script.
    words = ["sh", "-c", 'exec "$OWN" "$@"', "sh"]
    with pytest.raises(UsageError, match="runs no Python there"):
        ready(words)
    ready(words, OWN=sys.executable)


@pytest.mark.parametrize(
    ("module", "is_found"),
    [
        ("package.train", True), ("package", False), ("program", True), ("package.none", False),
        ("none.train", False),
    ],
)  # fmt: skip
def test_a_module_is_looked_for_as_python_runs_it(
    lab: Lab, tmp_path: Path, module: str, is_found: bool
) -> None:
    for name in ("package/__init__.py", "package/train.py", "program/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    launcher = LabLauncher(
        lab, workdir=tmp_path, script=module, script_python=[sys.executable, "-P", "-m"],
        environment={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    if is_found:
        launcher.require_ready()
        return
    with pytest.raises(
        UsageError, match=rf"(?s)module '{module}' is not found there by .*__main__.py"
    ):
        launcher.require_ready()


def test_a_workdir_that_is_not_there_is_said_before_anything_starts(lab: Lab) -> None:
    with pytest.raises(UsageError, match="/no/such"):
        LabLauncher(lab, workdir=Path("/no/such")).require_ready()
    with pytest.raises(UsageError, match=r"job.python: '/no/python' is not found"):
        LabLauncher(lab, python="/no/python").require_ready()
    with pytest.raises(UsageError, match="--network-only"):
        NoLauncher().require_ready()
