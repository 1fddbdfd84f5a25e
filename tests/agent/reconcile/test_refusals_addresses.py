"""Which addresses and subnets a state may have beside those of others. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from placewire.agent.contract.entries import Address, Bridge
from placewire.agent.contract.state import (
    DesiredState,
    ForeignEntry,
    Ledger,
    ObservedState,
    Refusal,
    TakenOver,
)
from placewire.agent.reconcile.validate import WayToController, refusals
from tests.agent.observed_states import BARE, FACTS, WAY, nic
from tests.agent.states import desired_state

NOBODY_PROTECTED = dataclasses.replace(FACTS, protected=frozenset())


def with_address(address: str) -> DesiredState:
    """A state of nic0 alone, which holds nothing."""
    return desired_state(
        1, nics=("nic0",), flows=(), routes=(), rules=(),
        addresses=(Address(interface="pw-nic0", address=address),),
    )  # fmt: skip


def on(interface: str, *addresses: str) -> ObservedState:
    others = {"nic1": nic("nic1", "10.7.1.1/24"), "mgmt": nic("mgmt", "10.9.0.1/24")}
    others[interface] = nic(interface, *addresses)
    return ObservedState(nics=(nic("nic0"), *others.values()))


def elsewhere(interface: str, address: str) -> ObservedState:
    found = (Address(interface=interface, address=address),)
    return on("nic1", "10.7.1.1/24").model_copy(update={"addresses_elsewhere": found})


@pytest.mark.parametrize(
    ("address", "observed", "expected"),
    [
        ("10.7.1.1/24", on("nic1", "10.7.1.1/24"), "overlaps with 10.7.1.1/24 of nic1"),
        ("10.7.0.9/16", on("nic1", "10.7.1.1/24"), "overlaps with 10.7.1.1/24 of nic1"),
        ("10.7.1.9/24", on("nic1", "10.7.0.1/16"), "overlaps with 10.7.0.1/16 of nic1"),
        ("10.7.1.9/24", on("docker0", "10.7.1.0/32"), "overlaps with 10.7.1.0/32 of docker0"),
        ("10.9.0.1/24", BARE, "overlaps with 10.9.0.1/24 of mgmt"),
        ("10.8.0.1/24", elsewhere("br-ex", "10.8.0.9/24"), "overlaps with 10.8.0.9/24 of br-ex"),
        ("10.8.0.1/24", elsewhere("lo", "10.8.0.1/32"), "overlaps with 10.8.0.1/32 of lo"),
    ],
)
def test_a_subnet_that_others_use_is_refused(
    address: str, observed: ObservedState, expected: str
) -> None:
    found = refusals(with_address(address), observed, Ledger(), NOBODY_PROTECTED, WAY)
    told = [refusal for refusal in found if refusal.what == expected]
    assert [refusal.where for refusal in told] == [f"address {address}"], found


def test_the_address_that_the_controller_is_reached_from_is_refused_wherever_it_is() -> None:
    way = WayToController(frozenset({"10.20.0.1"}))
    found = refusals(with_address("10.20.0.9/24"), BARE, Ledger(), FACTS, way)
    said = "overlaps with 10.20.0.1, through which this server reaches its controller"
    assert said in [refusal.what for refusal in found]


def test_a_nic_by_which_packets_leave_for_the_controller_is_refused() -> None:
    """The address of an unnumbered host is on its loopback."""
    way = WayToController(frozenset({"10.20.0.1"}), frozenset({"nic0"}))
    (found,) = refusals(desired_state(1), BARE, Ledger(), FACTS, way)
    assert found.where == "NIC nic0" and "is the way by which" in found.what


def test_what_a_nic_gets_back_is_in_use() -> None:
    """The bridge of nic0 has its address now; without the bridge, nic0 has it again."""
    given_back = Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24 label nic0",)),))
    bridge = Bridge(name="pw-nic0", nic="nic0", datapath="netdev")
    observed = ObservedState(
        nics=(nic("nic0", bridge="pw-nic0"), nic("nic1")), bridges=(bridge,),
        addresses=(Address(interface="pw-nic0", address="10.7.0.1/24"),),
    )  # fmt: skip
    taken = (Address(interface="pw-nic1", address="10.7.0.1/24"),)
    only_nic1 = desired_state(2, nics=("nic1",), flows=(), routes=(), rules=(), addresses=taken)

    def asked(ledger: Ledger) -> list[Refusal]:
        return [
            r for r in refusals(only_nic1, observed, ledger, FACTS, WAY) if "overlaps" in r.what
        ]

    (found,) = asked(given_back)
    assert found.what == "overlaps with 10.7.0.1/24 of nic0"
    assert asked(Ledger()) == [], "an address that only a plan gave moves to another bridge"


def test_an_address_that_others_put_on_a_bridge_of_ours_is_in_use() -> None:
    theirs = ForeignEntry(
        collection="addresses", key="pw-nic1 10.7.0.77/24", on="pw-nic1", text="theirs"
    )
    observed = BARE.model_copy(update={"foreign": (theirs,)})
    (found,) = refusals(desired_state(1), observed, Ledger(), FACTS, WAY)
    assert found.what == "overlaps with 10.7.0.77/24 of pw-nic1"


@pytest.mark.parametrize(
    ("swapped", "changes"),
    [
        pytest.param(True, {}, id="the addresses of two NICs of the state change places"),
        pytest.param(
            False,
            {"nics": (*BARE.nics, nic("pw-nic0", "10.7.0.1/24")),
             "bridges": (Bridge(name="pw-nic0", nic="", datapath="netdev"),)},
            id="a killed ovs-vswitchd left the interface of our bridge",
        ),
        pytest.param(
            False,
            {"foreign": (ForeignEntry(collection="addresses", key="pw-nic0 10.7.0.77/24",
                                      on="pw-nic0", text="theirs"),)},
            id="others have an address of that subnet on the bridge itself",
        ),
        pytest.param(
            False, {"nics": (*BARE.nics, nic("nic5", "fd00::1/64"))}, id="IPv6 on other NICs"
        ),
    ],
)  # fmt: skip
def test_what_is_ours_is_not_in_the_way(swapped: bool, changes: dict[str, Any]) -> None:
    wanted = desired_state(1)
    if swapped:
        rails = {"pw-nic0": "10.7.1.1/24", "pw-nic1": "10.7.0.1/24"}
        moved = tuple(Address(interface=name, address=a) for name, a in rails.items())
        wanted = wanted.model_copy(update={"addresses": moved, "routes": (), "rules": ()})
    observed = BARE.model_copy(update=changes)
    found = refusals(wanted, observed, Ledger(), FACTS, WAY)
    assert [r for r in found if "overlaps" in r.what] == []


@pytest.mark.parametrize(
    ("entry", "remedy"),
    [
        ("neigh 10.7.0.9 dev nic0", "ip neigh del 10.7.0.9 dev nic0"),
        ("neigh proxy 10.7.0.9 dev nic0", "ip neigh del proxy 10.7.0.9 dev nic0"),
        ("route local 192.0.2.0/24 dev nic0", "ip route del local 192.0.2.0/24 dev nic0"),
    ],
)
def test_a_nic_with_what_the_kernel_drops_is_refused_until_it_is_taken_over(
    entry: str, remedy: str
) -> None:
    wanted, held = with_address("10.7.0.1/24"), nic("nic0", lost_with_addresses=(entry,))
    found = refusals(wanted, ObservedState(nics=(held,)), Ledger(), NOBODY_PROTECTED, WAY)
    assert [r.where for r in found] == ["NIC nic0"], found
    assert f"`{entry}`" in found[0].what and remedy in found[0].remedy
    ledger = Ledger(nics=(TakenOver(nic="nic0", addresses=(), bridge="pw-nic0", mac=""),))
    assert refusals(wanted, ObservedState(nics=(held,)), ledger, NOBODY_PROTECTED, WAY) == ()
