"""A run's metrics are served while its command goes on, and a port that is taken is refused."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from placewire.controller import lab as labs
from placewire.controller.cli import main
from placewire.controller.errors import UsageError
from placewire.controller.lab.lab import Lab
from placewire.controller.lab.record import LabRecord, ServerRecord
from placewire.controller.lab.system import inside
from placewire.controller.metrics.run_state import RunState
from placewire.controller.metrics.serving import (
    DESCRIPTOR_VARIABLE,
    SOCKET,
    metrics_served,
    pass_port_on,
)
from placewire.controller.own_lab import LAB_VARIABLE
from placewire.controller.records.change_lock import ChangeLock
from placewire.metrics_server import loopback_port
from tests.controller.metrics.test_run_metrics import FACTS
from tests.controller.plans import plan_document
from tests.free_port import free_port
from tests.paths import ROOT
from tests.test_metrics_server import GET, ask


async def test_they_are_served_to_this_user_and_gone_afterwards(tmp_path: Path) -> None:
    state, said, port = RunState(), list[str](), free_port()
    async with metrics_served(state, tmp_path, port, said.append):
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
        before = await ask(tmp_path / SOCKET, GET)
        state.begin(FACTS, dict)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        during = await reader.read()
        writer.close()
    assert before.endswith(b"\r\n\r\n") and b"placewire_run_info{" in during
    assert not (tmp_path / SOCKET).exists() and not said
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port {port}") as refused:
            async with metrics_served(RunState(), tmp_path, port, lambda text: None):
                raise AssertionError("it began all the same")
    assert refused.value.where == f"127.0.0.1 port {port}"


# Serves a run's metrics for as long as its input is open, in this process' network.
SERVES = """
import asyncio, sys
from pathlib import Path
from placewire.controller.metrics.run_state import RunState
from placewire.controller.metrics.serving import metrics_served
async def main():
    async with metrics_served(RunState(), Path(sys.argv[1]), int(sys.argv[2]), print):
        print("serves", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@pytest.mark.network
def test_a_port_is_of_the_machine_though_the_command_is_in_a_lab(tmp_path: Path) -> None:
    port, name = free_port(), f"metrics{os.getpid()}"
    try:
        subprocess.run(["ip", "netns", "add", name], check=True)
        passed_on = pass_port_on(port)
        descriptor = int(passed_on[DESCRIPTOR_VARIABLE])
        with socket.socket(fileno=descriptor):
            command = subprocess.Popen(
                inside(name, [sys.executable, "-c", SERVES, str(tmp_path), str(port)]),
                env={**os.environ, **passed_on}, pass_fds=[descriptor], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        with command:
            assert command.stdout is not None and command.stdout.readline() == "serves\n"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                assert answer.status == 200
            command.communicate("")
        assert command.returncode == 0
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


@pytest.mark.parametrize("left", ["no number", "1000000"])
async def test_a_variable_that_another_program_left_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setenv(DESCRIPTOR_VARIABLE, left)
    with pytest.raises(UsageError, match=f"{DESCRIPTOR_VARIABLE}={left}: no port is open there"):
        async with metrics_served(RunState(), tmp_path, free_port(), lambda text: None):
            raise AssertionError("it began all the same")
    assert DESCRIPTOR_VARIABLE not in os.environ


@pytest.fixture
def plan_of_a_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plan of a lab that is up, as far as `apply` looks before it enters the lab."""
    servers = tuple(
        ServerRecord(name=f"s{k}", namespace=f"pw-small-s{k}", management_address=f"10.9.0.{k}")
        for k in (1, 2)
    )
    record = LabRecord(
        name="small", servers=servers, controller_namespace="pw-small",
        controller_address="10.9.0.254", namespaces=("pw-small",),
    )  # fmt: skip
    monkeypatch.setattr(labs, "find_lab", lambda name: Lab(record))
    monkeypatch.delenv(LAB_VARIABLE, raising=False)
    document = plan_document(2)
    document["job"] = {"kind": "torchrun", "script": str(ROOT / "examples/ddp.py")}
    del document["solve"]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(document))
    return tmp_path / "plan.yaml"


def test_apply_makes_the_port_before_it_enters_a_lab(
    plan_of_a_lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Mapping[str, str]] = []

    def become(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        became.append(environment)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvpe", become)
    port = free_port()
    with pytest.raises(SystemExit):
        main(["apply", str(plan_of_a_lab), "--yes", "--metrics-port", str(port)])
    (environment,) = became
    with socket.socket(fileno=int(environment[DESCRIPTOR_VARIABLE])) as passed_on:
        assert passed_on.getsockname() == ("127.0.0.1", port)


def test_a_second_apply_of_a_lab_is_told_of_the_first(
    plan_of_a_lab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one listens at the port, too."""
    port, state = free_port(), tmp_path / "state"
    state.mkdir()
    command = ["apply", str(plan_of_a_lab), "--yes", "--state-dir", str(state)]
    command += ["--metrics-port", str(port)]
    with loopback_port(port):
        with ChangeLock(state, print, needed=True).exclusive(), pytest.raises(SystemExit):
            main(command)
        assert f"another change is under way: process {os.getpid()}" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(command)
        assert f"--metrics-port {port}: it cannot be listened at" in capsys.readouterr().err


async def test_a_run_goes_on_where_its_socket_cannot_be_made(tmp_path: Path) -> None:
    said: list[str] = []
    async with metrics_served(RunState(), tmp_path / "no", None, said.append):
        pass
    assert len(said) == 1 and SOCKET in said[0]
