"""Tests that a machine which lost power comes back with the state that was kept.

deploy/kernel-machine/power_loss.py runs these parts inside the machine:

python tests/kernel/power_loss.py before    keeps one state and stages another over it
python tests/kernel/power_loss.py after     checks that the agent alone brought the kept one back
python tests/kernel/power_loss.py cables    makes the NICs that hardware would have at boot
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

# tests/conftest.py does the same, but only pytest loads it.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from placewire.agent.contract.messages import Commit, Destroy, ReadBack, Stage
from tests.agent.controller_double import ControllerDouble
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state
from tests.kernel.whole_machine import (
    PEER,
    SETTINGS,
    THE_MACHINE,
    UNIT,
    answer,
    install,
    join,
    journal,
    system,
    whole_machine,
)

NICS = ("nic0", "nic1")
KEPT, STAGED = (2_000_000, 3_000_000), (4_000_000, 5_000_000)
# The lease runs out before the machine is up again.
LEASE_SECONDS = 10
CABLES = "placewire-test-cables.service"
BACK_SECONDS = 60


def before() -> None:
    server = whole_machine()
    join(server)
    Path("/root/was.txt").write_text(_addresses())
    install(server)
    program = f"{sys.executable} {Path(__file__).resolve()} cables"
    environment = " ".join(f"{k}={v}" for k, v in os.environ.items() if k.startswith("PLACEWIRE_"))
    Path("/etc/systemd/system", CABLES).write_text(
        "[Unit]\nBefore=openvswitch-switch.service placewire-agent.service\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nEnvironment={environment}\n"
        f"ExecStart={program}\n[Install]\nWantedBy=multi-user.target\n"
    )
    system(f"systemctl daemon-reload; systemctl enable {CABLES} {UNIT}; hwclock --systohc")
    system("sync")  # only the installation; the agent itself must sync the rest
    with ControllerDouble(ServerUnderTest(SETTINGS, THE_MACHINE, PEER)) as controller:
        system(f"systemctl start {UNIT}")
        controller.wait_for_agent()
        assert answer(controller, Stage(desired=desired_state(1, KEPT), lease_seconds=600))
        answer(controller, Commit(generation=1, lease_seconds=None))
        staged = Stage(desired=desired_state(2, STAGED), lease_seconds=LEASE_SECONDS)
        assert answer(controller, staged)["succeeded"]
        assert all(_shaped(nic, STAGED) for nic in NICS)


def after() -> None:
    """Checks the network first; the agent is spoken to only when everything is back."""
    wait_for(lambda: all(_shaped(nic, KEPT) for nic in NICS), "what was kept", BACK_SECONDS)
    wait_for(lambda: system("ip rule").count("10.7.") >= len(NICS), "the rules", BACK_SECONDS)
    with ControllerDouble(ServerUnderTest(SETTINGS, THE_MACHINE, PEER)) as controller:
        hello = controller.wait_for_agent()
        assert (hello["lease"]["phase"], hello["lease"]["generation"]) == ("committed", 1), hello
        verified = answer(controller, ReadBack(generation=1))
        assert verified["deviations"] == verified["problems"] == [], verified
        assert answer(controller, Destroy(plan_name="test-plan"))["succeeded"]
    assert _addresses() == Path("/root/was.txt").read_text()
    assert "Traceback" not in journal(), journal()


def cables() -> None:
    join(whole_machine())


def _shaped(nic: str, rates: tuple[int, int]) -> bool:
    """Whether the kernel has queues of these rates."""
    classes = system(f"tc class show dev {nic}", check=False)
    return all(f"ceil {rate // 1_000_000}Mbit" in classes for rate in rates)


def _addresses() -> str:
    return system("for nic in nic0 nic1; do ip -br -4 address show $nic; done")


if __name__ == "__main__":
    parts: dict[str, Callable[[], None]] = {"before": before, "after": after, "cables": cables}
    parts[sys.argv[1]]()
    print(f"power loss: {sys.argv[1]}: as it should be", flush=True)
