"""Which addresses answer on which interface, on a real kernel."""

from __future__ import annotations

import pytest

from placewire.agent.contract.measurement import Neighbour
from placewire.agent.drivers.neighbours import find_neighbours
from tests.agent.server_under_test import ServerUnderTest

pytestmark = pytest.mark.network


def answers(server: ServerUnderTest, *addresses: str) -> set[str]:
    found: tuple[Neighbour, ...] = server.inside(find_neighbours, ["nic0", "nic1"], addresses)
    return {f"{one.interface} {one.address}" for one in found}


def known(server: ServerUnderTest) -> list[str]:
    return sorted(server.sh("ip neighbour show").splitlines())


def entered(server: ServerUnderTest) -> list[str]:
    """Without their states and MAC addresses, which change by themselves."""
    lines = server.sh("ip -4 neighbour show nud all").splitlines()
    return [
        " ".join([*line.split()[:3], *{"managed", "extern_learn"}.intersection(line.split())])
        for line in sorted(lines)
        if line.startswith("10.7.")
    ]


def test_whoever_is_on_the_wire_answers_there_and_is_forgotten(server: ServerUnderTest) -> None:
    server.sh("sysctl -qw net.ipv4.conf.all.arp_ignore=1", peer=True)
    before = known(server)
    asked = ("10.7.0.2", "10.7.0.99", "10.7.1.3")
    assert answers(server, *asked) == {"nic0 10.7.0.2", "nic1 10.7.1.3"}
    assert known(server) == before


def test_a_cable_in_the_other_switch_is_heard(server: ServerUnderTest) -> None:
    """The peer's two ends change places, as if two cables were swapped."""
    server.sh("sysctl -qw net.ipv4.conf.all.arp_ignore=1", peer=True)
    for rail, other in ((0, 1), (1, 0)):
        server.sh(f"ip address flush dev nic{rail}", peer=True)
        server.sh(f"ip address add 10.7.{other}.2/24 dev nic{rail}", peer=True)
    assert answers(server, "10.7.0.2", "10.7.1.2") == {"nic0 10.7.1.2", "nic1 10.7.0.2"}


@pytest.mark.parametrize(
    "entry",
    [
        "lladdr 02:00:00:00:00:99 dev nic0 nud permanent",
        "lladdr 02:00:00:00:00:99 dev nic0 nud noarp",
        "lladdr 02:00:00:00:00:99 dev nic0 nud reachable extern_learn",
        "dev nic1 managed",
    ],
)
def test_what_an_administrator_entered_stays_and_proves_nothing(
    server: ServerUnderTest, entry: str
) -> None:
    server.sh("sysctl -qw net.ipv4.conf.all.arp_ignore=1", peer=True)
    server.sh(f"ip neighbour add 10.7.{int('nic1' in entry)}.2 {entry}")
    before = entered(server)
    assert answers(server, "10.7.0.2", "10.7.1.2") == {
        "nic0 10.7.0.2" if "nic1" in entry else "nic1 10.7.1.2"
    }
    assert entered(server) == before and len(before) == 1


def test_what_cannot_be_asked_is_said(server: ServerUnderTest) -> None:
    with pytest.raises(AssertionError, match="interface nic9 is gone"):
        server.inside(find_neighbours, ["nic9"], ["10.7.0.2"])
    with pytest.raises(AssertionError, match="Expected 4 octets"):
        server.inside(find_neighbours, ["nic0"], ["10.7.0"])
