"""The agent's daemon and its command, as processes in a server's namespace."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.agent.datapath import PATIENCE
from tests.agent.server_under_test import ServerUnderTest
from tests.paths import ROOT


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
        capture_output=True, text=True, timeout=60 * PATIENCE,
    )  # fmt: skip


def readable_python() -> tuple[str, str]:
    """An interpreter that another user may run, and its module path; not in a home folder."""
    own = Path(sys.executable).resolve()
    packages = sysconfig.get_paths()["purelib"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (own, Path(f"/usr/bin/python{version}")):
        folders = [*candidate.parents, Path(packages), *Path(packages).parents, *ROOT.parents]
        if candidate.exists() and all(folder.stat().st_mode & 0o001 for folder in folders):
            return str(candidate), f"{ROOT / 'src'}:{packages}"
    pytest.skip(f"no Python {version} here that another user may run")


def end(process: subprocess.Popen[bytes], number: int) -> int:
    process.send_signal(number)
    return process.wait(60 * PATIENCE)
