"""What an interrupted command says that it does is what it does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.command_line import INTERRUPTED
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.cli import main
from placewire.controller.commands import provision
from placewire.controller.commands.interrupts import interruptible
from placewire.controller.errors import EXIT_CODES, AgentProblem
from placewire.controller.story import destruction, dropped_servers
from placewire.controller.uninterruptible import interrupt_means, told_uninterruptible
from tests.controller.plans import plan_document
from tests.free_port import free_port


async def interrupted(*_: Any) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
    return 0


async def heard() -> None:
    """The event loop hears signals between two of its turns."""
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):
        await asyncio.sleep(0)


def test_each_phase_says_what_an_interrupt_means_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    async def putting_back() -> None:
        interrupt_means("putting back")  # As part of the work does, which cannot be stopped.
        await heard()
        await heard()

    async def work() -> int:
        await told_uninterruptible(putting_back(), means="going on to the end", then="ended")
        return 0

    with pytest.raises(KeyboardInterrupt, match="interrupted; ended"):
        interruptible(work(), means="nothing")
    said = capsys.readouterr().err
    assert said == "controller: interrupted; going on to the end\n" * 2

    with pytest.raises(KeyboardInterrupt, match="interrupted; nothing"):
        interruptible(interrupted(), means="nothing")
    assert capsys.readouterr().err == "controller: interrupted; nothing\n"
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted$"):
        interruptible(interrupted())


# As work that restores servers: what it says last is said in spite of the signals that it gets.
_CLOSED = """
import asyncio, os, signal, sys
from placewire.controller.commands.interrupts import interruptible
from placewire.controller.uninterruptible import uninterruptible
# Not as the tests were started, which may be under nohup.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
async def restored():
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0.1)
    print("restored", flush=True)
async def work():
    os.kill(os.getpid(), signal.SIGHUP)
    try:
        await asyncio.sleep(0.2)
        print("went on", flush=True)
    finally:
        await uninterruptible(restored())
    return 0
try:
    interruptible(work(), means="putting back")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "lines"),
    [("plain", ["restored", "interrupted"]), ("nohup", ["went on", "restored"])],
)
def test_a_closed_terminal_interrupts_and_cuts_nothing_off(how: str, lines: list[str]) -> None:
    """Its shell sends SIGHUP, which would end the controller in the middle of putting back."""
    done = subprocess.run(
        [sys.executable, "-c", _CLOSED, how], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, lines)


def test_an_installation_puts_nothing_back_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "_provision", interrupted)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan_document()))
    with pytest.raises(SystemExit) as ended:
        main(["provision", str(tmp_path / "plan.yaml"), "--yes"])
    said = capsys.readouterr().err
    assert ended.value.code == INTERRUPTED
    assert "what is done on servers stays" in said and "putting back" not in said
    assert "what provision did stays" in EXIT_CODES[INTERRUPTED]


NOTHING_DONE = {"version": 1, "changes": {}, "others": {}}


class Interrupted:
    """`controller destroy --json`, with parts of it replaced."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        Authority.load(folder / "state" / "ca")
        self.replace(Agents, "wait_for", self.nothing)
        self.replace(destruction, "others_on", self.nothing)
        self.replace(dropped_servers, "dropped_servers", self.nothing)

    async def nothing(self, *_: Any, **__: Any) -> Any:
        return {}

    def replace(self, where: Any, name: str, part: Any) -> None:
        self.patch.setattr(where, name, part)

    def run(self) -> Any:
        (self.folder / "plan.yaml").write_text(yaml.safe_dump(plan_document(2)))
        with pytest.raises(SystemExit) as ended:
            main([
                "destroy", str(self.folder / "plan.yaml"), "--yes", "--json", "--no-lab",
                "--state-dir", str(self.folder / "state"), "--listen", f"127.0.0.1:{free_port()}",
            ])  # fmt: skip
        return ended.value.code


@pytest.fixture
def destroy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    return Interrupted(tmp_path, monkeypatch)


def test_a_destroy_that_is_interrupted_says_that_it_goes_on_and_what_came_of_it(
    destroy: Interrupted, capsys: pytest.CaptureFixture[str]
) -> None:
    async def destroyed(*_: Any) -> dict[str, Any]:
        await heard()
        await heard()
        return {}

    destroy.replace(destruction, "destroyed", destroyed)
    assert destroy.run() == INTERRUPTED
    told = capsys.readouterr()
    assert json.loads(told.out) == NOTHING_DONE, "one document, of what was done"
    assert told.err.count("a destroy cannot be stopped halfway: it goes on to its end") == 2
    assert "interrupted; nothing of the plan is left on s1, s2\n" in told.err
    assert "putting" not in told.err


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after its document"])
def test_an_interrupted_destroy_prints_one_document(
    after: bool, destroy: Interrupted, capsys: pytest.CaptureFixture[str]
) -> None:
    if after:
        destroy.replace(destruction, "destroyed", destroy.nothing)
        destroy.replace(dropped_servers, "dropped_servers", interrupted_)
    else:
        destroy.replace(destruction, "others_on", interrupted_)
    assert destroy.run() == INTERRUPTED
    told = capsys.readouterr()
    document = json.loads(told.out)
    if after:
        assert document == NOTHING_DONE and "nothing of the plan is left" in told.err
    else:
        assert document["exit_code"] == INTERRUPTED
        assert document["error"]["what"] == "interrupted; no server's network was changed"


async def interrupted_(*_: Any, **__: Any) -> Any:
    return await interrupted()


def test_a_problem_after_a_document_prints_no_second(
    destroy: Interrupted, capsys: pytest.CaptureFixture[str]
) -> None:
    async def problem(*_: Any, **__: Any) -> Any:
        raise AgentProblem("it does not answer")

    destroy.replace(destruction, "destroyed", destroy.nothing)
    destroy.replace(dropped_servers, "dropped_servers", problem)
    assert destroy.run() == 5
    told = capsys.readouterr()
    assert json.loads(told.out) == NOTHING_DONE and "it does not answer" in told.err
