"""Starts an agent per server of a lab, as its systemd unit would; waits until each has dialled."""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from placewire.agent.contract.config import AgentConfig
from placewire.controller.agents.authority import Authority
from placewire.controller.errors import AgentUnreachable, PlacewireError
from placewire.controller.lab import record as records
from placewire.controller.lab.processes import describe
from placewire.controller.lab.record import LabRecord, Recorder
from placewire.controller.lab.shape import CONTROLLER_TCP_PORT, MANAGEMENT_INTERFACE, LabServer
from placewire.controller.lab.switches import database_remote, run_directory
from placewire.controller.lab.system import NAMESPACE_DIRECTORY, inside, marked_environment

_CERTIFICATE_SECONDS = 30 * 86_400.0
# For so long no agent at all may dial. All begin at once and share this machine's processors, so
# that the last of many dials long after the first.
_DIAL_SECONDS = 60.0


@dataclass
class _Daemon:
    server: LabServer
    process: subprocess.Popen[bytes]
    log: Path


def start_agents(recorder: Recorder, servers: Sequence[LabServer]) -> None:
    """Returns when each agent has dialled the controller's address once. Raises AgentUnreachable,
    with the last lines of the agent's log, where one ends or stays silent."""
    record = recorder.record
    folder = records.directory_of(record.name)
    authority = Authority.load(folder / "controller" / "ca")
    with _listening(record.controller_namespace, record.controller_address) as listener:
        daemons = []
        for server in servers:
            config = _configure(record, authority, server)
            daemons.append(_start(recorder, server, config))
        _await_dialling(listener, daemons)


def _configure(record: LabRecord, authority: Authority, server: LabServer) -> Path:
    """Writes certificates and configuration; returns the path of the configuration."""
    folder = records.directory_of(record.name) / server.name
    issued = authority.issue(
        server.name, "agent", folder / "certificates", lifetime_seconds=_CERTIFICATE_SECONDS
    )
    config = AgentConfig(
        server=server.name,
        controller_url=f"https://{record.controller_address}:{CONTROLLER_TCP_PORT}",
        certificate_file=str(issued.certificate_file),
        key_file=str(issued.key_file),
        authority_file=str(authority.certificate_file),
        state_dir=str(folder / "agent"),
        ovsdb_remote=database_remote(record.name, server.name),
        openvswitch_run_dir=str(run_directory(record.name, server.name)),
        datapath="netdev",
        protected=("lo", MANAGEMENT_INTERFACE),
    )
    (folder / "agent").mkdir(mode=0o700)
    file = folder / "agent.json"
    file.write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return file


def _start(recorder: Recorder, server: LabServer, config: Path) -> _Daemon:
    log = config.with_name("agent.log")
    argv = [sys.executable, "-m", "placewire.agent.main", "run", "--config", str(config)]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            inside(server.namespace, argv),
            # Python imports from the folder that it starts in, and an agent runs as root.
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=marked_environment(recorder.record.name),
            start_new_session=True,
        )
    recorder.add_process(describe(process.pid, argv))
    return _Daemon(server, process, log)


@contextmanager
def _listening(namespace: str, address: str) -> Iterator[socket.socket]:
    """Yields a socket at the controller's address, in its namespace. A socket stays where it was
    made, so a thread enters the namespace, makes the socket and ends."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        from pyroute2 import netns

        try:
            netns.setns(str(NAMESPACE_DIRECTORY / namespace))
            made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise PlacewireError(f"cannot enter {namespace}: {made[0]}", where="lab") from made[0]
    with made[0] as ready:
        ready.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ready.bind((address, CONTROLLER_TCP_PORT))
        ready.listen(64)
        yield ready


def _await_dialling(listener: socket.socket, daemons: Sequence[_Daemon]) -> None:
    """Hangs up on each agent that dials: it dials again, as whenever no controller listens."""
    silent = {daemon.server.management.split("/")[0]: daemon for daemon in daemons}
    deadline = time.monotonic() + _DIAL_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while silent:
            if selector.select(timeout=0.1):
                caller, (address, _) = listener.accept()
                caller.close()
                if silent.pop(address, None) is not None:
                    deadline = time.monotonic() + _DIAL_SECONDS
            for daemon in silent.values():
                if daemon.process.poll() is not None or time.monotonic() > deadline:
                    raise AgentUnreachable(
                        [daemon.server.name],
                        why=_said(daemon),
                        remedy="correct what the lines above, the end of its log, tell, and try "
                        "again; all that was made of the lab is removed",
                    )


def _said(daemon: _Daemon) -> str:
    code = daemon.process.poll()
    state = "it stays silent" if code is None else f"it ended with {code}"
    lines = daemon.log.read_text(errors="replace").strip().splitlines()[-8:]
    return "\n    ".join([state, *lines])
