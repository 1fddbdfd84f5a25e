"""A server under test with all that can fail on it: the agent's daemon, its small disk, its state
and its clock, Open vSwitch's two daemons, a NIC, a controller. Each can be killed, and started
again. What the agent should put back, nobody else does."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from placewire.agent.reconcile.lease import Kept
from placewire.agent.store import STATE_FILE, DiskStore
from placewire.frozen import Frozen
from placewire.oracle.namespace import take_in
from tests.agent.controller_double import ControllerDouble, write_certificates
from tests.agent.real_nics import Nic
from tests.agent.server_under_test import (
    ServerUnderTest,
    server_under_test,
    start_database,
    start_vswitchd,
    wait_for,
)

# The agent's state takes some 20 KiB, and a few changes fill as much of the audit log.
DISK_BYTES = 4 * 1024 * 1024
# Runs the agent with a wall clock that is off; nothing else of the machine sees it.
_OFF_CLOCK = (
    "import runpy, sys, time; real, off = time.time, float(sys.argv.pop(1)); "
    "time.time = lambda: real() + off; "
    "runpy.run_module('placewire.agent.main', run_name='__main__', alter_sys=True)"
)


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

    def withdraw(self, identifier: str) -> None:
        """See ControllerDouble.withdraw."""
        self._ask("withdraw", identifier)

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
        if not self._pipe.poll(60):
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
            elif words[0] == "withdraw":
                double.withdraw(words[1])
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
        self.clock_off_seconds = 0.0
        self.nic = Nic(server, lambda: self.kept)
        self.agent = self._start_agent()
        self.controller = ControllerProcess(server)

    @property
    def kept(self) -> Kept:
        return DiskStore(self.state_dir).load()

    def snapshot(self) -> dict[str, Any]:
        """The server's network by the oracle. Raises UnreadableError."""
        return take_in(self.server.namespace, str(self.server.directory))

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

    def empty_disk(self) -> None:
        (self.state_dir / "filler").unlink(missing_ok=True)

    def damage_state(self, how: Callable[[bytes], bytes] | None) -> None:
        """Kills the agent and changes what is in its state file, or loses the file (None)."""
        self.kill_agent()
        file = self.state_dir / STATE_FILE
        if how is None:
            file.unlink(missing_ok=True)
        elif file.exists():
            file.write_bytes(how(file.read_bytes()))

    # -- and back --------------------------------------------------------------------------------

    def repair(self) -> None:
        """Starts all that is missing, as systemd does, and brings the NIC back, but gives it
        nothing that the agent should."""
        self.empty_disk()
        self.nic.bring_back()
        self.repair_daemons()

    def repair_daemons(self) -> None:
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
        self.agent.wait(60)
        self.agent = self._start_agent()

    def close(self) -> None:
        if self.controller.alive:
            self.controller.kill()

    def _start_agent(self) -> subprocess.Popen[bytes]:
        with (self.server.directory / "agent.log").open("ab") as log:
            program = ["-m", "placewire.agent.main"]
            if self.clock_off_seconds:
                program = ["-c", _OFF_CLOCK, str(self.clock_off_seconds)]
            return self.server.popen(
                sys.executable, *program, "run", "--config", str(self._config),
                stdout=log, stderr=log,
            )  # fmt: skip

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        if process in self.server.processes:
            self.server.processes.remove(process)


def flip_one_bit(rng: random.Random) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]

    return flip


@contextmanager
def real_lab() -> Iterator[RealLab]:
    with ExitStack() as clearing:
        server = clearing.enter_context(server_under_test())
        server.give_ipv6()
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
        wait_for(lambda: "connected to" in log.read_text(), "the agent")
        yield lab
