"""The agent's daemon and its command, as processes in a server's namespace."""

from __future__ import annotations

import subprocess
import sys

from tests.agent.datapath import PATIENCE
from tests.agent.server_under_test import ServerUnderTest


def config_file(server: ServerUnderTest) -> str:
    path = server.directory / "agent.yaml"
    path.write_text(server.config.model_dump_json())
    return str(path)


def start_agent(server: ServerUnderTest) -> subprocess.Popen[bytes]:
    log = (server.directory / "agent.log").open("ab")
    command = (sys.executable, "-m", "placewire.agent.main", "run", "--config", config_file(server))
    return server.popen(*command, stdout=log, stderr=log)


def agent_command(server: ServerUnderTest, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ip", "netns", "exec", server.namespace, sys.executable, "-m", "placewire.agent.main",
         *words, "--config", config_file(server)],
        capture_output=True, text=True, timeout=30 * PATIENCE,
    )  # fmt: skip


def end(process: subprocess.Popen[bytes], number: int) -> int:
    process.send_signal(number)
    return process.wait(10 * PATIENCE)
