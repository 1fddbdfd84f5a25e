"""A whole cluster without a network: agents in memory behind the real link, and real commands.

Its agents are one process, its `controller` commands one each; what they have on disk is real.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from placewire.agent.contract.state import LeaseState
from placewire.agent.store import read_kept
from placewire.controller.agents.authority import Authority
from tests.controller.forked_commands import PROGRAM, Commands, Done, ask, program
from tests.controller.memory_agents import Member, told
from tests.controller.plans import plan_document
from tests.free_port import free_port
from tests.paths import ROOT

SILENCE = "placewire.controller.agents.agents.SILENCE_SECONDS"
# Agents in memory dial again at once; on a busy machine their process may be held up for long.
_HERE = {"placewire.controller.agents.agents._ALL_DIAL_SECONDS": 0.1, SILENCE: 60.0}
_PATIENT = """
import sys
import placewire.controller.agents.agents as agents
from placewire.controller.cli import main
agents.SILENCE_SECONDS = 60.0
main(sys.argv[1:])
"""


class Programs(NamedTuple):
    """What clusters use that are there one after another: its imports take seconds."""

    agents: subprocess.Popen[bytes]
    commands: subprocess.Popen[bytes]


@contextmanager
def programs() -> Iterator[Programs]:
    with program("memory_agents.py") as agents, program(PROGRAM) as commands:
        yield Programs(agents, commands)


class MemoryCluster:
    def __init__(self, folder: Path, servers: int = 3) -> None:
        self.folder, self.state, self.servers = folder, folder / "state", servers
        # What commands have there while they run.
        self.temporary = folder / "temporary"
        self.port = free_port()
        self.authority = Authority.load(self.state / "ca")
        self.members = [self._member(f"s{host}", host) for host in range(1, servers + 1)]
        self._agents: subprocess.Popen[bytes] | None = None
        self._commands: Commands | None = None

    def _member(self, server: str, host: int) -> Member:
        own = self.folder / server
        own.mkdir()
        issued = self.authority.issue(server, "agent", own, lifetime_seconds=3600)
        pem = issued.key_file.read_bytes() + issued.certificate_file.read_bytes()
        (own / "agent.pem").write_bytes(pem)
        shutil.copy(self.authority.certificate_file, own / "authority.crt")
        return Member(server, host, str(own), self.port)

    def copy_of(self, server: str, host: int) -> Member:
        """Another server with this one's certificate, as a copied disk has it."""
        (first,) = (one for one in self.members if one.server == server)
        own = self.folder / f"copy of {server}"
        own.mkdir()
        for name in ("agent.pem", "authority.crt"):
            shutil.copy(Path(first.folder) / name, own)
        return replace(first, host=host, folder=str(own))

    @contextmanager
    def running(self, shared: Programs | None = None) -> Iterator[None]:
        """Agents and commands; ended with the block. shared: for those whose programs go on."""
        with ExitStack() as stack:
            used = shared or stack.enter_context(programs())
            self.temporary.mkdir()
            self._agents = used.agents
            self._commands = Commands(used.commands, self.folder / "output")
            self._tell_agents(told(self.members))
            try:
                yield
            finally:
                self._tell_agents(told([]))

    def leave(self, server: str, request: str, until: float | str = math.inf) -> None:
        """Its agent, when it is next asked that. until: the seconds, or what another is asked."""
        self._tell_agents(f"{server} leaves {request} {until}\n")

    def come_back(self, server: str) -> None:
        self._tell_agents(f"{server} returns\n")

    def plan(self, name: str = "plan", rate: str = "50Mbit", **network: Any) -> Path:
        """A script's, kept: deciding on it takes no time."""
        document = plan_document(self.servers, name="memory", rate=rate)
        document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
        document["network"] = {"on_exit": "keep", **network}
        del document["solve"]
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(document))
        return file

    def run(self, command: str, *arguments: str | Path, **order: Any) -> Done:
        """order: of forked_commands_process.py."""
        assert self._commands is not None
        order["patches"] = {**_HERE, **order.get("patches", {})}
        order["environment"] = {"TMPDIR": str(self.temporary)}
        return self._commands.run(self._words(command, *arguments), **order)

    def start(self, command: str, *arguments: str | Path) -> subprocess.Popen[str]:
        """A process that goes on beside this one, with patient agents."""
        return subprocess.Popen(
            [sys.executable, "-c", _PATIENT, *self._words(command, *arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        )  # fmt: skip

    @property
    def leases(self) -> dict[str, LeaseState]:
        """As agents have them on disk."""
        return {Path(one.folder).name: read_kept(Path(one.folder)).lease for one in self.members}

    def _words(self, command: str, *arguments: str | Path) -> list[str]:
        options = ["--no-lab", "--state-dir", str(self.state)]
        if "--listen" not in arguments:
            options += ["--listen", f"127.0.0.1:{self.port}"]
        return [command, *map(str, arguments), *options]

    def _tell_agents(self, line: str) -> None:
        assert self._agents is not None
        assert ask(self._agents, line) == "ready\n"
