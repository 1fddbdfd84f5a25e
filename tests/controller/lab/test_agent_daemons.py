"""A lab waits for its agents for as long as they come in, however many there are."""

from __future__ import annotations

import itertools
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from placewire.controller.errors import AgentUnreachable
from placewire.controller.lab import agent_daemons
from placewire.controller.lab.shape import LabServer

# Each look at the clock finds it so much later: an eighth of the time for which no agent may dial.
LOOK_SECONDS = agent_daemons._DIAL_SECONDS / 8
AGENTS = 6


@pytest.fixture
def daemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[agent_daemons._Daemon]]:
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(looks) * LOOK_SECONDS)
    monkeypatch.setattr(agent_daemons, "time", clock)
    log = tmp_path / "agent.log"
    log.write_text("it thinks\n")
    with subprocess.Popen(["sleep", "600"]) as process:
        yield [
            agent_daemons._Daemon(LabServer(f"s{k}", "", f"127.0.0.{k}/8", ()), process, log)
            for k in range(1, AGENTS + 1)
        ]
        process.kill()


def dialling(listener: socket.socket, count: int) -> list[socket.socket]:
    """The calls of the first agents, which wait to be taken."""
    to = listener.getsockname()
    return [
        socket.create_connection(to, source_address=(f"127.0.0.{k}", 0))
        for k in range(1, count + 1)
    ]


def test_the_last_of_many_agents_may_dial_long_after_the_first(
    daemons: list[agent_daemons._Daemon],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        calls = dialling(listener, AGENTS)
        agent_daemons._await_dialling(listener, daemons)
        for call in calls:
            call.close()


def test_an_agent_that_stays_silent_is_named(daemons: list[agent_daemons._Daemon]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        calls = dialling(listener, AGENTS - 1)
        with pytest.raises(AgentUnreachable, match="it stays silent\n    it thinks") as problem:
            agent_daemons._await_dialling(listener, daemons)
        assert f"s{AGENTS}" in str(problem.value)
        for call in calls:
            call.close()
