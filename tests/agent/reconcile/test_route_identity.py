"""Which texts of `ip route` mean one route."""

from __future__ import annotations

import pytest

from placewire.agent.contract.state import Ledger, ObservedState, TakenOver
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.ledger import has_back
from placewire.agent.reconcile.route_identity import identities, identity, is_of_v6
from tests.agent.observed_states import nic
from tests.agent.states import desired_state

GATEWAY = "10.50.0.0/16 via 10.7.0.254 dev nic0 proto 4 metric 50"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("default via 10.7.0.254 dev nic0", "0.0.0.0/0 via 10.7.0.254 dev nic0"),
        ("10.8.0.9 dev nic0", "10.8.0.9/32 dev nic0 metric 0"),
        ("10.8.0.0/24 dev nic0", "unicast 10.8.0.0/24 dev nic0 table 254"),
        ("10.8.0.0/24 tos 0x10 dev nic0", "10.8.0.0/24 tos 16 dev nic0"),
        ("10.8.0.0/24 via inet 10.7.0.2 dev nic0", "10.8.0.0/24 via 10.7.0.2 dev nic0"),
        (GATEWAY, "10.50.0.0/16 metric 50 via 10.7.0.254 mtu 1400 proto 3 dev nic0"),
        ("2001:db8::1/128 dev nic0", "2001:db8::1 dev nic0 pref medium"),
        ("10.8.0.0/24 dev nic0 rto_min lock 200ms", "10.8.0.0/24 dev nic0 rto_min 200ms"),
    ],
)
def test_two_texts_of_one_route(one: str, other: str) -> None:
    assert identity(one) == identity(other)


@pytest.mark.parametrize(
    "other",
    [
        "10.51.0.0/16 via 10.7.0.254 dev nic0 proto 4 metric 50",
        "10.50.0.0/17 via 10.7.0.254 dev nic0 proto 4 metric 50",
        "10.50.0.0/16 via 10.7.0.253 dev nic0 proto 4 metric 50",
        "10.50.0.0/16 via 10.7.0.254 dev nic1 proto 4 metric 50",
        "10.50.0.0/16 via 10.7.0.254 dev nic0 proto 4 metric 51",
        "10.50.0.0/16 via 10.7.0.254 dev nic0 proto 4",
        "10.50.0.0/16 dev nic0 proto 4 metric 50",
        "10.50.0.0/16 via 10.7.0.254 dev nic0 table 7 proto 4 metric 50",
        "10.50.0.0/16 tos 0x10 via 10.7.0.254 dev nic0 proto 4 metric 50",
        "10.50.0.0/16 via 10.7.0.254 dev nic0 proto 4 src 10.7.0.1 metric 50",
        "10.50.0.0/16 via inet6 fe80::1 dev nic0 proto 4 metric 50",
        "local 10.50.0.0/16 via 10.7.0.254 dev nic0 proto 4 metric 50",
        "10.50.0.0/16 metric 50 nexthop via 10.7.0.254 dev nic0 nexthop via 10.7.0.254 dev nic1",
        "",
    ],
)
def test_another_route(other: str) -> None:
    assert identity(GATEWAY) != identity(other)


def test_the_length_of_an_ipv6_route_counts() -> None:
    assert identity("2001:db8::/32 dev nic0") != identity("2001:db8:: dev nic0")


@pytest.mark.parametrize(
    ("text", "is_v6"),
    [
        ("::/0 via fe80::1 dev nic0", True), ("local fd00::1 dev nic0", True),
        ("fd00::1/64 scope 0", True), ("10.8.0.0/16 via inet6 fe80::1 dev nic0", False),
        ("default via 10.7.0.254 dev nic0", False), ("10.7.0.1/24 label nic0:1", False),
    ],
)  # fmt: skip
def test_what_is_of_ipv6(text: str, is_v6: bool) -> None:
    assert is_of_v6(text) == is_v6


def test_a_nic_has_back_its_route_in_whatever_words() -> None:
    taken = TakenOver(nic="nic0", addresses=(), routes=(GATEWAY,))
    said = "10.50.0.0/16 via 10.7.0.254 dev nic0 proto 4 metric 50 mtu 1400"
    assert has_back(taken, nic("nic0", routes=(said,)))
    assert not has_back(taken, nic("nic0", routes=(said.replace("254", "253"),)))


def test_what_is_on_the_bridge_in_other_words_is_not_put_there_again() -> None:
    ledger = Ledger(
        nics=(TakenOver(nic="nic0", bridge="pw-nic0", addresses=(), routes=(GATEWAY,)),)
    )
    moved = "10.50.0.0/16 via 10.7.0.254 dev pw-nic0 proto 4 metric 50 onlink"
    desired = desired_state(1, nics=("nic0",))
    seen = ObservedState(nics=(nic("nic0"),), bridge_routes=(moved,))
    assert not [s for s in difference(desired, seen, ledger) if s.collection == "nics"]
    assert identities([GATEWAY]) == identities([GATEWAY, f"{GATEWAY} mtu 1400"])
