"""The lab that end-to-end tests share, and its `controller` commands.

A command runs as a user runs it, or is forked, without the time that its imports take.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from placewire.controller.lab import find_lab
from placewire.controller.lab.processes import start_ticks
from placewire.controller.lab.switches import run_directory
from tests.controller.plans import plan_document
from tests.end_to_end.snapshots import server_snapshot
from tests.forking import Forked, Forking
from tests.paths import ROOT

SERVERS = ("s1", "s2", "s3")
# The rate of each NIC: half of what two slow cores can switch in all queues at once.
NIC_BITS_PER_SECOND = 8e6
# A failed test shows so many of the last lines that a command printed.
LAST_LINES = 40
OTHERS_SECONDS = 90
# The memory of each device: less than the small model's weights, gradients and optimizer state
# (6.8 MiB), so that at least two servers take part, whatever the profile says.
TIGHT_MEMORY = "6800KiB"
# The modules that commands import while they run, but for their own.
IMPORTED = (
    "placewire.controller.agents.agents",
    "placewire.controller.apply",
    "placewire.controller.change.in_force",
    "placewire.controller.launch.ranks",
    "placewire.controller.story.recovery",
    "placewire.controller.story.rollback",
    "placewire.controller.show.story",
    "placewire.controller.records.decision_in_force",
    "cryptography.hazmat.primitives.asymmetric.ec",
    "cryptography.x509",
    "cryptography.hazmat.primitives.serialization",
    "placewire.optimizer.network.script_allocation",
    "rich._emoji_codes",
)

Process = subprocess.Popen[bytes] | Forked


@dataclass(frozen=True)
class Finished:
    code: int
    output: str
    seconds: float

    @property
    def document(self) -> Any:
        """The document that `--json` printed, which follows the lines of standard error."""
        begin = 0 if self.output.startswith("{") else self.output.index("\n{")
        return json.loads(self.output[begin:])

    @property
    def told(self) -> str:
        """The exit code and last lines, for a test that failed."""
        return f"exit {self.code}:\n" + "\n".join(self.output.splitlines()[-LAST_LINES:])


@dataclass
class TestCluster:
    """One lab of three servers; `folder` holds the plans that tests write."""

    __test__ = False

    name: str
    folder: Path
    new: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The snapshot of each server as the lab made it."""
    is_as_new: bool = False
    """Whether the last test was seen to leave it so."""
    forking: Forking | None = None
    """The process from which commands are forked; None where they start as a user's do."""

    def up(self) -> None:
        done = self.run("lab", "up", str(self.plan(self.document(), "lab")))
        assert done.code == 0, done.told
        lab = find_lab(self.name)
        assert lab is not None
        self.forking = Forking(
            *IMPORTED, around=lab.inside_controller([]), environment=lab.environment
        )
        self.new = self.snapshots()
        self.is_as_new = True

    def down(self) -> None:
        if self.forking is not None:
            self.forking.close()
            self.forking = None
        spaces = [space for space in Path("/run/netns").iterdir() if self.name in space.name]
        inside = [(pid, start_ticks(pid), words) for pid, _, words in processes_in(spaces)]
        done = self.run("lab", "down", self.name)
        assert done.code == 0, done.told
        left = [words for pid, ticks, words in inside if ticks and start_ticks(pid) == ticks]
        assert not left, left

    def make_anew_if_touched(self) -> None:
        """Makes the lab anew where a failed test left something, which would fail the next
        tests."""
        if not self.is_as_new and (self.snapshots() != self.new or self.ranks()):
            self.down()
            self.up()

    def document(self) -> dict[str, Any]:
        document = plan_document(len(SERVERS), name=self.name, rate=f"{NIC_BITS_PER_SECOND:.0f}bit")
        for server in document["cluster"]["servers"]:
            server["devices"][0]["memory"] = TIGHT_MEMORY
        document["solve"] = {"time_limit": "1s", "seed": 1}
        # All servers share two cores with other tests, so that a moment's lack of processor time
        # must not count as a broken promise.
        document["network"]["verify"] |= {"tolerance": "30%", "seconds": 1}
        return copy.deepcopy(document)

    def script_document(self, *arguments: str, **network: Any) -> dict[str, Any]:
        """The plan of a job that places itself, so that deciding takes no time. arguments: the
        script's."""
        document = self.document()
        document["job"] = {
            "kind": "torchrun", "script": "examples/ddp.py", "arguments": list(arguments),
        }  # fmt: skip
        del document["solve"], document["network"]["sharing"]
        document["network"] |= network
        return document

    def script_plan(self, name: str, *arguments: str, **network: Any) -> str:
        return str(self.plan(self.script_document(*arguments, **network), name))

    def plan(self, document: Mapping[str, Any], name: str = "plan") -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(dict(document), sort_keys=False))
        return file

    def as_a_user(self) -> TestCluster:
        """The same lab, whose commands are separate Python processes that find the lab
        themselves."""
        return replace(self, forking=None)

    def start(self, *arguments: str) -> Process:
        shown = {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        if self.forking is not None:
            environment = {**self.forking.environment, **shown}
            return self.forking.start(
                "placewire.controller.cli", *arguments, environment=environment, join_errors=True
            )
        return subprocess.Popen(
            [sys.executable, "-m", "placewire.controller.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **shown},
        )

    def run(
        self,
        *arguments: str,
        on_line: Callable[[str, Process], None] = lambda line, process: None,
        timeout_seconds: float = 600,
    ) -> Finished:
        done = self._run(*arguments, on_line=on_line, timeout_seconds=timeout_seconds)
        until = time.monotonic() + OTHERS_SECONDS
        # The controller takes ranks of tests that run beside this one for a job's on these servers.
        occupied = "cannot be measured in isolation"
        while done.code and occupied in done.output and time.monotonic() < until:
            done = self._run(*arguments, on_line=on_line, timeout_seconds=timeout_seconds)
        return done

    def _run(
        self,
        *arguments: str,
        on_line: Callable[[str, Process], None],
        timeout_seconds: float,
    ) -> Finished:
        began = time.monotonic()
        process = self.start(*arguments)
        watchdog = threading.Timer(timeout_seconds, process.kill)
        watchdog.start()
        lines = []
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.decode())
                on_line(lines[-1], process)
            code = process.wait()
        finally:
            watchdog.cancel()
            if process.poll() is None:
                process.kill()
        return Finished(code, "".join(lines), time.monotonic() - began)

    def namespace(self, server: str) -> str:
        lab = find_lab(self.name)
        assert lab is not None
        return lab.namespace(server)

    def snapshots(self) -> dict[str, Mapping[str, Any]]:
        spaces = map(self.namespace, SERVERS)
        databases = (run_directory(self.name, server) / "db.sock" for server in SERVERS)
        with ThreadPoolExecutor() as threads:
            return dict(zip(SERVERS, threads.map(server_snapshot, spaces, databases), strict=True))

    def processes(self, words: str, *servers: str) -> list[int]:
        """Pids of the programs of this name whose network is one of these servers'. A program that
        starts another is its own parent for a moment, by name: such a child does not count."""
        spaces = [Path("/run/netns") / self.namespace(server) for server in servers]
        found = {pid: parent for pid, parent, command in processes_in(spaces) if words in command}
        return [pid for pid, parent in found.items() if parent not in found]

    def ranks(self) -> list[int]:
        return self.processes("placewire.job", *SERVERS)


def processes_in(spaces: Iterable[Path]) -> list[tuple[int, int, str]]:
    """Pid, parent's pid and command line of whatever has one of these network namespaces."""
    inodes = {space.stat().st_ino for space in spaces}
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if (entry / "ns/net").stat().st_ino in inodes:
                found.append((int(entry.name), parent, command))
        except OSError:  # it ended meanwhile
            continue
    return found


def once(words: str, act: Callable[[Process], None]) -> Any:
    """Calls `act` when a line with these words is first printed."""
    done: list[Any] = []

    def on_line(line: str, process: Process) -> None:
        if words in line and not done:
            done.append(line)
            act(process)

    return on_line


def interrupt(process: Process) -> None:
    """Interrupts twice, as an impatient person does: the second must not stop the undoing."""
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)


def read_report(path: Path) -> Any:
    return json.loads(path.read_text())
