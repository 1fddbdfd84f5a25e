"""The real daemon beside a driver that does not answer is linked, and ends when it is told to."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.messages import Observe
from tests.agent.agent_process import end, start_agent
from tests.agent.controller_double import ControllerDouble, write_certificates
from tests.agent.server_under_test import ServerUnderTest, wait_for

# The driver has 20 s: by then the daemon must have dialled.
pytestmark = [pytest.mark.network, pytest.mark.timed]

ONE = "NVIDIA A100-SXM4-80GB, 81920, 00000000:65:00.0, Disabled"


@pytest.fixture
def may_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`nvidia-smi` waits until this file is there."""
    file, command = tmp_path / "may-answer", tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\nwhile [ ! -e {file} ]; do sleep 0.1; done\necho '{ONE}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return file


def test_the_controller_is_greeted_before_the_driver_answers_and_after_it(
    server: ServerUnderTest, may_answer: Path
) -> None:
    write_certificates(server.directory)
    with ControllerDouble(server) as controller:
        controller.poll_seconds = 600.0
        agent = start_agent(server)
        told = controller.wait_for_agent()["capabilities"]
        assert told["gpus_unread"] and [one["name"] for one in told["devices"]] == ["cpu"]
        assert "result" in controller.ask(Observe())
        may_answer.touch()

        def with_gpu() -> Any:
            return controller.hellos[-1]["capabilities"]["devices"][0]["name"] != "cpu"

        wait_for(with_gpu, "a hello with what the driver says")
        assert not controller.hellos[-1]["capabilities"]["gpus_unread"]
        assert "result" in controller.ask(Observe())
    assert end(agent, signal.SIGTERM) == 0


def test_the_daemon_does_not_wait_for_the_driver_to_end(
    server: ServerUnderTest, may_answer: Path
) -> None:
    write_certificates(server.directory)
    with ControllerDouble(server) as controller:
        agent = start_agent(server)
        assert controller.wait_for_agent()["capabilities"]["gpus_unread"]
    try:
        assert end(agent, signal.SIGTERM) == 0
    finally:
        may_answer.touch()
