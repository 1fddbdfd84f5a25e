"""The real daemon in a namespace, linked over mutual TLS, killed, and left without a controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.messages import (
    Commit,
    Destroy,
    Observe,
    Preview,
    ReadBack,
    ReadCounters,
    Renew,
    Restore,
    Stage,
)
from placewire.agent.drivers.server import Server
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.steps import Step
from placewire.agent.store import DiskStore
from placewire.agent.wiring import server_facts, way_of
from tests.agent import keeping
from tests.agent.agent_process import agent_command, end, start_agent
from tests.agent.controller_double import ControllerDouble, write_certificates
from tests.agent.datapath import DATAPATH
from tests.agent.server_under_test import ServerUnderTest, start_database, wait_for
from tests.agent.states import desired_state, first_changes

pytestmark = pytest.mark.network


@pytest.fixture
def controller(server: ServerUnderTest) -> Iterator[ControllerDouble]:
    write_certificates(server.directory)
    with ControllerDouble(server) as running:
        yield running


def phase_on_disk(server: ServerUnderTest) -> str:
    return DiskStore(Path(server.config.state_dir)).load().lease.phase


def stage(generation: int = 1, lease_seconds: float = 30, **changes: Any) -> Stage:
    return Stage(desired=desired_state(generation, **changes), lease_seconds=lease_seconds)


def test_the_story_of_one_apply(server: ServerUnderTest, controller: ControllerDouble) -> None:
    before = server.snapshot()
    agent = start_agent(server)
    hello = controller.wait_for_agent()
    assert hello["server"] == "s1" and hello["agent_pid"] == agent.pid
    capabilities = hello["capabilities"]
    assert capabilities["datapath"] == DATAPATH
    assert capabilities["set_queue_honoured"] == (DATAPATH == "system")
    assert capabilities["open_vswitch_version"].startswith("3.")
    assert {nic["name"] for nic in capabilities["nics"]} == {"nic0", "nic1", "mgmt"}
    assert capabilities["nics"][0]["driver"] == "veth"

    previewed = controller.ask(Preview(desired=desired_state()))["result"]
    assert len(previewed["changes"]) == first_changes(server) and not previewed["refusals"]
    assert server.snapshot() == before

    report = controller.ask(stage())["result"]
    assert report["succeeded"] and report["changes"] == previewed["changes"]
    assert controller.ask(Renew(generation=1, lease_seconds=60))["result"]["phase"] == "staged"
    verified = controller.ask(ReadBack(generation=1))["result"]
    assert (verified["deviations"], verified["problems"], verified["drift"]["drifts"]) == (
        [],
        [],
        0,
    )
    lease = controller.ask(Commit(generation=1, lease_seconds=None))["result"]
    assert lease["phase"] == "committed" and lease["expires_unix"] is None
    assert controller.ask(Renew(generation=9, lease_seconds=1))["refusal"]["where"] == "renew"
    observation = controller.ask(Observe())["result"]
    assert len(observation["state"]["queues"]) == 8
    counters = controller.ask(ReadCounters(interfaces=("nic0", "gone")))["result"]["counters"]
    assert [c["interface"] for c in counters] == ["nic0"] and counters[0]["receive_bytes"] > 0

    assert controller.ask(Destroy(plan_name="test-plan"))["result"]["succeeded"]
    assert server.snapshot() == before
    assert end(agent, signal.SIGTERM) == 0


def test_what_is_not_understood_is_refused_and_the_rest_goes_on(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    start_agent(server)
    controller.wait_for_agent()
    controller.deliveries = 2  # Each request comes twice, and is done and answered once.
    odd = controller.send({"request": "reboot"})
    future = controller.send({"request": "renew", "generation": 1, "lease_seconds": 1, "new": 1})
    good = controller.send(Observe())
    replies = wait_for(lambda: len(controller.replies) == 3 and controller.replies, "three replies")
    assert "'reboot' is not understood" in replies[odd]["refusal"]["what"]
    assert "new" in replies[future]["refusal"]["what"]
    assert replies[good]["result"]["lease"]["phase"] == "idle"


@contextmanager
def stopped_switch(server: ServerUnderTest) -> Iterator[None]:
    """For a while Open vSwitch takes nothing in, so that no change can end."""
    switch = int((server.directory / "vswitchd.pid").read_text())
    os.kill(switch, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(switch, signal.SIGCONT)


def test_renewing_works_while_a_change_is_under_way(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    start_agent(server)
    controller.wait_for_agent()
    with stopped_switch(server):
        staging = controller.send(stage())
        counting = controller.send(ReadCounters(interfaces=("lo",)))
        wait_for(lambda: counting in controller.replies, "the counters")
        assert staging not in controller.replies
    wait_for(lambda: staging in controller.replies, "the stage")


def test_the_lease_ends_without_a_controller(server: ServerUnderTest) -> None:
    before = server.snapshot()
    write_certificates(server.directory)
    with ControllerDouble(server) as controller:
        agent = start_agent(server)
        controller.wait_for_agent()
        report = controller.ask(stage(lease_seconds=2.5))["result"]
        assert report["succeeded"] and report["changes"]
    wait_for(lambda: phase_on_disk(server) == "idle", "the restore")
    assert server.snapshot() == before
    assert agent.poll() is None
    with ControllerDouble(server) as controller:
        assert controller.wait_for_agent()["lease"]["phase"] == "idle"


def _stop_database(server: ServerUnderTest) -> None:
    ovsdb = next(p for p in server.processes if "ovsdb-server" in p.args)  # type: ignore[operator]
    assert end(ovsdb, signal.SIGTERM) is not None


def test_a_lease_that_ends_while_the_database_is_away_ends_after_it(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    before = server.snapshot()
    agent = start_agent(server)
    controller.wait_for_agent()
    assert controller.ask(stage())["result"]["succeeded"]
    _stop_database(server)
    # Only now, so that it cannot end before the database is away.
    assert controller.ask(Renew(generation=1, lease_seconds=0.5))["result"]["phase"] == "staged"
    log = server.directory / "agent.log"
    wait_for(lambda: phase_on_disk(server) == "failed", "the attempt")
    asked = controller.ask(Observe())
    assert "ovsdb-server" in asked["refusal"]["what"], asked
    start_database(server)
    wait_for(lambda: phase_on_disk(server) == "idle", "the restore")
    assert agent.poll() is None, log.read_text()
    assert server.snapshot() == before


def test_the_link_outlives_a_database_that_is_away(server: ServerUnderTest) -> None:
    """The agent looks at the network to say hello; without Open vSwitch it says what it can."""
    write_certificates(server.directory)
    agent = start_agent(server)
    log = server.directory / "agent.log"
    wait_for(lambda: "no controller" in log.read_text(), "an attempt")
    _stop_database(server)
    with ControllerDouble(server) as controller:
        assert controller.wait_for_agent()["capabilities"]["datapath"] == "none"
        start_database(server)
        assert "result" in controller.ask(Observe())
    assert agent.poll() is None


def test_what_could_not_be_made_whole_at_the_start_is_later(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    first = start_agent(server)
    controller.wait_for_agent()
    controller.ask(stage())
    controller.ask(Commit(generation=1, lease_seconds=None))
    end(first, signal.SIGTERM)
    whole = server.snapshot()
    server.sh("ip rule del priority 18001")
    _stop_database(server)
    agent = start_agent(server)
    log = server.directory / "agent.log"
    wait_for(lambda: "keeps trying" in log.read_text(), "the attempt")
    start_database(server)
    wait_for(lambda: server.snapshot() == whole, "what is in force")
    assert agent.poll() is None


def test_a_committed_state_survives_the_agent(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    before = server.snapshot()
    agent = start_agent(server)
    controller.wait_for_agent()
    controller.ask(stage())
    controller.ask(Commit(generation=1, lease_seconds=None))
    during = server.snapshot()
    assert end(agent, signal.SIGTERM) == 0
    assert server.snapshot() == during
    greeted = len(controller.hellos)
    again = start_agent(server)
    assert controller.wait_for_agent(greeted + 1)["lease"]["phase"] == "committed"
    assert end(again, signal.SIGKILL) == -signal.SIGKILL
    assert server.snapshot() == during

    shown = agent_command(server, "status")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "committed, generation 1 of plan test-plan" in shown.stdout
    assert "queue 2: 10 to 10 Mbit/s, to s2" in shown.stdout
    restored = agent_command(server, "restore")
    assert restored.returncode == 0, restored.stdout + restored.stderr
    assert server.snapshot() == before
    assert "nothing in force" in agent_command(server, "status").stdout


def test_killed_while_staged_the_next_agent_ends_the_lease(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    before = server.snapshot()
    agent = start_agent(server)
    controller.wait_for_agent()
    controller.ask(stage())
    end(agent, signal.SIGKILL)
    assert server.snapshot() != before
    # Only now, so that it cannot end while the first agent lives.
    assert server.inside(keeping.renew, server.config, 1, 1).phase == "staged"
    start_agent(server)
    wait_for(lambda: phase_on_disk(server) == "idle", "the restore")
    assert server.snapshot() == before


def test_killed_in_the_middle_of_a_change(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    """With Open vSwitch stopped, the change cannot end before the agent is killed.
    test_dying_after_any_kind_of_step_is_undone goes through the places in a change at which the
    agent may die."""
    before = server.snapshot()
    agent = start_agent(server)
    controller.wait_for_agent()
    with stopped_switch(server):
        controller.send(stage(lease_seconds=3600))
        wait_for(lambda: phase_on_disk(server) == "applying", "the change")
        wait_for(lambda: "pw-nic0" in server.vsctl("list-br"), "the change in the database")
        end(agent, signal.SIGKILL)
    assert phase_on_disk(server) == "applying"
    greeted = len(controller.hellos)
    start_agent(server)
    assert controller.wait_for_agent(greeted + 1)["lease"]["phase"] == "idle"
    assert server.snapshot() == before


class DyingServer(Server):
    """Ends its process before the n-th step."""

    def __init__(self, config: AgentConfig, steps: int) -> None:
        super().__init__(config)
        self._steps = steps

    def apply(self, steps: Any, plan_name: str) -> None:
        done: list[Step] = list(steps[: self._steps])
        super().apply(done, plan_name)
        os._exit(9)


def _stage_and_die(config: AgentConfig, steps: int) -> None:
    server = DyingServer(config, steps)
    store = DiskStore(Path(config.state_dir))
    generation = store.load().lease.highest_generation + 1
    Keeper(server, store, server_facts(config, server), way_of(config)).stage(
        desired_state(generation), 3600
    )


def _destroy_and_die(config: AgentConfig, steps: int) -> None:
    server = DyingServer(config, steps)
    store = DiskStore(Path(config.state_dir))
    Keeper(server, store, server_facts(config, server), way_of(config)).destroy("test-plan")


def test_dying_after_any_kind_of_step_is_undone(server: ServerUnderTest) -> None:
    before = server.snapshot()
    for steps in (0, 1, 4, 13, 26, first_changes(server)):
        with pytest.raises(AssertionError, match="died: exit 9"):
            server.inside(_stage_and_die, server.config, steps)
        report = server.inside(keeping.resume, server.config)
        assert report is not None and report.succeeded, (steps, report)
        assert server.snapshot() == before, steps


def test_dying_while_restoring_is_finished(server: ServerUnderTest) -> None:
    before = server.snapshot()
    for generation, steps in enumerate((4, 22, 27, 30), start=1):
        assert server.inside(keeping.stage, server.config, desired_state(generation)).succeeded
        with pytest.raises(AssertionError, match="died: exit 9"):
            server.inside(_destroy_and_die, server.config, steps)
        report = server.inside(keeping.resume, server.config)
        assert report is not None and report.succeeded, (steps, report)
        assert server.snapshot() == before, steps


def test_only_one_agent_and_no_restore_beside_it(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    agent = start_agent(server)
    controller.wait_for_agent()
    second = start_agent(server)
    assert second.wait(60) == 1
    refused = agent_command(server, "restore")
    assert refused.returncode == 1 and f"process {agent.pid}" in refused.stderr


def test_a_controller_with_another_name_is_not_spoken_to(server: ServerUnderTest) -> None:
    write_certificates(server.directory, controller_name="somebody")
    with ControllerDouble(server) as controller:
        start_agent(server)
        log = server.directory / "agent.log"
        wait_for(lambda: "no trusted connection" in log.read_text(), "an attempt")
        assert not controller.hellos
        assert "certificate" in log.read_text().lower()


def test_a_restore_request_brings_the_former_plan_back(
    server: ServerUnderTest, controller: ControllerDouble
) -> None:
    start_agent(server)
    controller.wait_for_agent()
    controller.ask(stage(1))
    controller.ask(Commit(generation=1, lease_seconds=None))
    first = server.snapshot()
    controller.ask(stage(2, rates=(5_000_000, 6_000_000), sysctls=()))
    assert server.snapshot() != first
    assert controller.ask(Restore(generation=2))["result"]["succeeded"]
    assert server.snapshot() == first


def test_a_mistake_in_the_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("server: s1\ncontroler_url: https://x\n")
    done = subprocess.run(
        [sys.executable, "-m", "placewire.agent.main", "status", "--config", str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "controller_url" in done.stderr or "controler_url" in done.stderr
