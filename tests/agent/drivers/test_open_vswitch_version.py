"""Which version of Open vSwitch serves, and that one older than any that was tried is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from placewire.agent.contract.messages import Preview, Stage
from placewire.agent.doctor.gather import gather
from placewire.agent.drivers.open_vswitch_version import open_vswitch_version
from placewire.agent.reconcile.refusals_switch import too_old, version_numbers
from tests.agent.agent_process import start_agent
from tests.agent.controller_double import ControllerDouble, write_certificates
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state


@pytest.fixture
def controller(server: ServerUnderTest) -> Iterator[ControllerDouble]:
    write_certificates(server.directory)
    with ControllerDouble(server) as running:
        yield running


@pytest.mark.parametrize(
    ("version", "is_refused"),
    [
        ("3.1.0", False), ("3.1", False), ("3.5.0", False), ("10.0.1", False),
        ("3.0.9", True), ("2.17.9", True), ("2.17.9-1ubuntu2", True), ("3.1.0-rc1", False),
    ],
)  # fmt: skip
def test_a_version_older_than_any_that_was_tried_is_refused(version: str, is_refused: bool) -> None:
    assert bool(too_old(version_numbers(version))) == is_refused


def write_version(server: ServerUnderTest, version: str) -> None:
    server.vsctl(f"set Open_vSwitch . ovs_version={version}")


@pytest.mark.network
def test_the_version_is_the_databases_or_else_the_programs(server: ServerUnderTest) -> None:
    remote = server.config.ovsdb_remote
    program = server.sh("ovs-vswitchd --version").splitlines()[0].split()[-1]
    server.vsctl("clear Open_vSwitch . ovs_version")
    assert server.inside(open_vswitch_version, remote) == program
    for names_none in ("'\"\"'", "unknown"):
        write_version(server, names_none)
        assert server.inside(open_vswitch_version, remote) == program
    write_version(server, "2.17.9")
    assert server.inside(open_vswitch_version, remote) == "2.17.9"
    assert server.inside(open_vswitch_version, "unix:/nobody/listens.sock") == program
    assert server.inside(lambda: gather(server.config)).switch.version == "2.17.9"


@pytest.mark.network
def test_an_agent_on_an_old_open_vswitch_changes_nothing_and_says_why(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    write_version(server, "2.17.9")
    before = server.snapshot()
    start_agent(server)
    assert controller.wait_for_agent()["capabilities"]["open_vswitch_version"] == "2.17.9"
    (refusal,) = controller.ask(Preview(desired=desired_state()))["result"]["refusals"]
    assert refusal["where"] == "Open vSwitch"
    assert "2.17.9 (ovs_version in its database, " in refusal["what"]
    assert "is older than 3.1" in refusal["what"]
    assert "install Open vSwitch 3.1 or newer" in refusal["remedy"]
    assert "ovs-vsctl get Open_vSwitch . ovs_version" in refusal["remedy"]
    report = controller.ask(Stage(desired=desired_state(), lease_seconds=30))["result"]
    assert not report["succeeded"]
    assert server.snapshot() == before
