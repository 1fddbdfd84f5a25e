"""A server under test with all that can fail on it: the agent's daemon and its small disk, Open
vSwitch's two daemons, NICs, a controller. Each can be killed, and started again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from placewire.agent.reconcile.lease import Kept
from placewire.agent.store import DiskStore
from placewire.frozen import Frozen
from tests.agent.controller_double import ControllerDouble, write_certificates
from tests.agent.server_under_test import (
    ServerUnderTest,
    server_under_test,
    start_database,
    start_vswitchd,
    wait_for,
)

# The agent's state takes some 20 KiB, and a few changes fill as much of the audit log.
DISK_BYTES = 4 * 1024 * 1024


class ControllerProcess:
    """A ControllerDouble in a process of its own, which can be killed."""

    def __init__(self, server: ServerUnderTest) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(server, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._ask("ready") is True

    def send(self, request: Frozen) -> str:
        """Returns the id of the request."""
        return str(self._ask("send", request.model_dump(mode="json")))

    def reply(self, identifier: str) -> Any:
        """Returns the reply as JSON; None while there is none."""
        return self._ask("reply", identifier)

    def spoil(self, what: str) -> None:
        """See ControllerDouble.spoil; "twice" delivers every request twice from now on."""
        self._ask("spoil", what)

    def hold_polls(self, seconds: float) -> None:
        """See ControllerDouble.poll_seconds."""
        self._ask("hold polls", seconds)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _ask(self, *words: Any) -> Any:
        self._pipe.send(words)
        if not self._pipe.poll(20):
            raise AssertionError(f"the controller's double does not answer {words[0]}")
        return self._pipe.recv()


def _serve(server: ServerUnderTest, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ControllerDouble(server) as double, suppress(EOFError):
        while True:
            words = pipe.recv()
            answer: Any = True
            if words[0] == "send":
                answer = double.send(words[1])
            elif words[0] == "reply":
                answer = double.replies.get(words[1])
            elif words[0] == "hold polls":
                double.poll_seconds = words[1]
            elif words[0] == "spoil":
                double.deliveries = 2 if words[1] == "twice" else 1
                double.spoil = words[1]
            pipe.send(answer)
    os._exit(0)


class RealLab:
    def __init__(self, server: ServerUnderTest) -> None:
        self.server = server
        self.database, self.switch = server.processes
        self.state_dir = Path(server.config.state_dir)
        self._config = server.directory / "agent.json"
        self._config.write_text(server.config.model_dump_json())
        self.agent = self._start_agent()
        self.controller = ControllerProcess(server)

    @property
    def kept(self) -> Kept:
        return DiskStore(self.state_dir).load()

    def ask(self, request: Frozen, seconds: float = 60.0) -> Any:
        """Returns the reply as JSON."""
        identifier = self.controller.send(request)
        return wait_for(lambda: self.controller.reply(identifier), str(request)[:80], seconds)

    # -- ended the hard way ----------------------------------------------------------------------

    def kill_agent(self) -> None:
        self._kill(self.agent)

    def kill_switch(self) -> None:
        self._kill(self.switch)

    def kill_database(self) -> None:
        self._kill(self.database)

    def fill_disk(self) -> None:
        with (self.state_dir / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 4096):
                pass

    def take_nic_away(self) -> None:
        self.server.sh("ip link del nic1")

    # -- and back --------------------------------------------------------------------------------

    def repair(self) -> None:
        """Starts and restores all that is missing, as an operator or systemd would."""
        (self.state_dir / "filler").unlink(missing_ok=True)
        if "nic1" not in self.server.sh("ip -br link show type veth"):
            self.server.plug_in("nic1")
            self.server.give_addresses(1)
        if self.database.poll() is not None:
            start_database(self.server)
            self.database = self.server.processes[-1]
        if self.switch.poll() is not None:
            start_vswitchd(self.server)
            self.switch = self.server.processes[-1]
        if not self.controller.alive:
            self.controller = ControllerProcess(self.server)
        if self.agent.poll() is not None:
            self.agent = self._start_agent()

    def restart_agent(self) -> None:
        self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(15)
        self.agent = self._start_agent()

    def close(self) -> None:
        if self.controller.alive:
            self.controller.kill()

    def _start_agent(self) -> subprocess.Popen[bytes]:
        with (self.server.directory / "agent.log").open("ab") as log:
            return self.server.popen(
                sys.executable, "-m", "placewire.agent.main", "run", "--config", str(self._config),
                stdout=log, stderr=log,
            )  # fmt: skip

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.server.processes.remove(process)


@contextmanager
def real_lab() -> Iterator[RealLab]:
    with ExitStack() as clearing:
        server = clearing.enter_context(server_under_test())
        write_certificates(server.directory)
        state = Path(server.config.state_dir)
        state.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "placewire-test", str(state)],
            check=True,
        )
        clearing.callback(subprocess.run, ["umount", "--lazy", str(state)], check=True)
        lab = RealLab(server)
        clearing.callback(lab.close)
        log = server.directory / "agent.log"
        wait_for(lambda: "connected to" in log.read_text(), "the agent", 20)
        yield lab
