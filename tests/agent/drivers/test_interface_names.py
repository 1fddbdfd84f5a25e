"""A NIC is protected under any of its names, and a name that protects nothing is told."""

from __future__ import annotations

import logging

import pytest

from placewire.agent import daemon
from placewire.agent.contract.config import AgentConfig
from placewire.agent.drivers.server import Server
from placewire.agent.wiring import build_keeper
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state

pytestmark = pytest.mark.network

LONG = "a-name-longer-than-the-kernel-gives"


def told_at_start(config: AgentConfig) -> list[str]:
    told: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    daemon.log.addHandler(Kept())
    daemon._log_unknown_protected(config)
    return told


def said_in_hello(config: AgentConfig) -> tuple[str, ...]:
    server = Server(config)
    return daemon._hello(config, server, build_keeper(config, server), "").protected


def test_an_alternative_name_protects_and_a_misspelt_one_is_told(server: ServerUnderTest) -> None:
    server.sh(f"ip link property add dev nic0 altname {LONG}")
    config = server.config.model_copy(update={"protected": ("mgmt", LONG, "nic00")})
    assert server.inside(said_in_hello, config) == (LONG, "mgmt", "nic0", "nic00")
    before = server.snapshot()
    report = server.inside(keeping.stage, config, desired_state(1))
    assert ("NIC nic0", "is protected in this agent's configuration") in {
        (refusal.where, refusal.what) for refusal in report.refusals
    }
    assert server.snapshot() == before
    (told,) = server.inside(told_at_start, config)
    assert "names 'nic00', which no interface" in told
