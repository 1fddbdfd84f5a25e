"""The story of one apply with the agent as a server runs it, killed in between; and its GPUs.

The agent runs under its shipped systemd unit, with the distribution's Open vSwitch, in the
machine's own network namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.messages import (
    Commit,
    Destroy,
    Observe,
    Preview,
    ReadBack,
    RunTransfers,
    Stage,
)
from tests.agent.controller_double import ControllerDouble
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state
from tests.agent.transfers import PAYLOAD, RATES, listen, transfer
from tests.kernel import nvidia_driver
from tests.kernel.whole_machine import (
    PEER,
    SETTINGS,
    THE_MACHINE,
    UNIT,
    WholeMachine,
    answer,
    install,
    join,
    journal,
    main_pid,
    system,
    whole_machine,
)

pytestmark = [pytest.mark.network, pytest.mark.slow]

CAP_NET_ADMIN = 12


@pytest.fixture
def machine() -> Iterator[WholeMachine]:
    server = whole_machine()
    try:
        join(server)
        install(server)
        yield server
    finally:
        system(f"systemctl stop {UNIT}", check=False)
        for process in server.processes:
            process.kill()
        system("ip link delete mgmt; ip link delete nic0; ip link delete nic1", check=False)
        system(f"ip netns delete {PEER}; ip netns delete {THE_MACHINE}", check=False)


def test_the_story_of_one_apply_under_the_shipped_unit(machine: WholeMachine) -> None:
    before = machine.snapshot()
    desired = desired_state()
    certificates = ServerUnderTest(SETTINGS, THE_MACHINE, PEER)
    with ControllerDouble(certificates) as controller:
        system(f"systemctl start {UNIT}")
        hello = controller.wait_for_agent()
        assert hello["agent_pid"] == main_pid()
        assert hello["capabilities"]["datapath"] == "system"
        assert hello["capabilities"]["traffic_control"]["known"], "it may ask the kernel"
        status = Path(f"/proc/{main_pid()}/status").read_text()
        held = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Cap"))
        assert set(held.values()) == {f"{1 << CAP_NET_ADMIN:016x}"}
        assert system(f"stat --format %U /proc/{main_pid()}") == "placewire"

        previewed = answer(controller, Preview(desired=desired))
        assert not previewed["refusals"] and machine.snapshot() == before
        staged = answer(controller, Stage(desired=desired, lease_seconds=600))
        assert staged["succeeded"] and staged["changes"] == previewed["changes"]
        verified = answer(controller, ReadBack(generation=1))
        assert verified["deviations"] == verified["problems"] == []
        measured = measure(machine, controller)
        assert measured == pytest.approx(RATES[2] * PAYLOAD, rel=0.1)
        answer(controller, Commit(generation=1, lease_seconds=None))
        during = machine.snapshot()

        killed = main_pid()
        system(f"systemctl kill --signal=KILL --kill-whom=main {UNIT}")
        assert controller.wait_for_agent(2)["lease"]["phase"] == "committed"
        assert main_pid() not in (0, killed), "systemd has started another"
        assert machine.snapshot() == during
        assert len(answer(controller, Observe())["state"]["queues"]) == 8

        assert answer(controller, Destroy(plan_name="test-plan"))["succeeded"]
        assert machine.snapshot() == before
        system(f"systemctl stop {UNIT}")
    said = journal()
    assert not re.search(r"Traceback|[Pp]ermission denied|not permitted", said), said
    print("\n" + system(f"systemd-analyze security --no-pager {UNIT} | tail -1"))


def test_what_the_shipped_unit_starts_may_open_the_files_of_nvidia_s_driver(
    machine: WholeMachine,
) -> None:
    """Whether it may is decided when the unit starts: with a driver that comes later it may not,
    which is told."""
    certificates = ServerUnderTest(SETTINGS, THE_MACHINE, PEER)
    with nvidia_driver.device_files(), ControllerDouble(certificates) as controller:
        with nvidia_driver.loaded():
            system(f"systemctl start {UNIT}")
            told = once_gpus_are_read(controller)
            # The kernel finds nobody behind the two, and forbids the third.
            assert nvidia_driver.opened() == {
                "/dev/nvidia0": "ENXIO", "/dev/nvidiactl": "ENXIO", "/dev/placewire-test": "EPERM",
            }  # fmt: skip
            gpus = [(one["name"], one["memory_bytes"]) for one in told["devices"]]
            assert gpus == [("NVIDIA A100-SXM4-80GB", 80 << 30)] * 2 and not told["gpu_problem"]
            system(f"systemctl stop {UNIT}")
        former = len(controller.hellos)
        system(f"systemctl start {UNIT}")
        told = once_gpus_are_read(controller, former)
        assert set(nvidia_driver.opened().values()) == {"EPERM"}
        assert [one["name"] for one in told["devices"]] == ["cpu"]
        assert told["gpu_problem"].startswith("nvidia-smi failed: NVIDIA-SMI has failed")
        system(f"systemctl stop {UNIT}")


def once_gpus_are_read(controller: ControllerDouble, former: int = 0) -> Any:
    """The capabilities in the first hello after so many that has heard from the driver."""

    def told() -> Any:
        said = (hello["capabilities"] for hello in controller.hellos[former:])
        return next((one for one in said if not one["gpus_unread"]), None)

    return wait_for(told, "a hello with what the driver says")


def measure(machine: WholeMachine, controller: ControllerDouble) -> float:
    """The bits per second through queue 2, measured with the agent's own iperf3."""
    listen(machine, (transfer(2),))
    request = RunTransfers(transfers=(transfer(2),), seconds=4, start_unix=0)
    (result,) = answer(controller, request)["results"]
    assert result["error"] is None, result
    wait_for(lambda: "iperf3" not in system("ps -o comm= --ppid " + str(main_pid()), check=False),
             "the end of iperf3")  # fmt: skip
    return float(result["measured_bits_per_second"])
