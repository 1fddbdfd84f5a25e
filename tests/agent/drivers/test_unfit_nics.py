"""Interfaces that cannot be the port of a bridge, as the kernel really has them, are refused."""

from __future__ import annotations

import pytest

from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state

pytestmark = pytest.mark.network

_MACVLAN = "ip link add link mgmt name nic7 type macvlan"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (f"{_MACVLAN}; ip link set nic7 up", "type macvlan"),
        ("ip tuntap add dev nic7 mode tun; ip link set nic7 up", "type none"),
        (
            "ip link add nic7 type veth peer name nic8; ip link set nic8 up; "
            "ip link set nic7 arp off; ip link set nic7 up",
            "NOARP",
        ),
    ],
)
def test_they_are_refused_before_anything_changes(
    server: ServerUnderTest, make: str, expected: str
) -> None:
    server.sh(make)
    before = server.snapshot()
    report = server.inside(keeping.stage, server.config, desired_state(1, nics=("nic7",)))
    assert any(r.where == "NIC nic7" and expected in r.what for r in report.refusals), report
    assert server.snapshot() == before


def test_a_port_that_open_vswitch_could_not_make_is_told(server: ServerUnderTest) -> None:
    assert server.inside(keeping.stage, server.config, desired_state(1)).succeeded
    server.vsctl("--no-wait set interface nic0 type=nonsense")
    server.sh(f"ovs-vsctl --timeout=30 --db=unix:{server.directory}/db.sock wait-until interface "
              "nic0 ofport=-1")  # fmt: skip
    (unopened,) = server.inside(keeping.observe, server.config).state.unopened
    assert unopened.nic == "nic0" and "could not open network device nic0" in unopened.why
