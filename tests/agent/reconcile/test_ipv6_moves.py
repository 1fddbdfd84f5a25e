"""Which of a NIC's IPv6 addresses are due on its bridge, and when they are back on the NIC."""

from __future__ import annotations

from placewire.agent.contract.entries import Address
from placewire.agent.contract.state import Ledger, NicFacts, ObservedState, TakenOver
from placewire.agent.reconcile.diff import difference, moved_v6
from placewire.agent.reconcile.hold_back import hold_back
from placewire.agent.reconcile.ledger import givable, has_back
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step
from placewire.agent.reconcile.unmarkable import unmarked
from tests.agent.observed_states import nic
from tests.agent.states import desired_state

V4, V6, OTHER_V6 = "10.7.0.1/24", "fd07::1/64 scope 0", "fd08::1/64 scope 0 nodad"
ROUTE = "2001:db8::/32 via fd07::2 dev nic0 src fd08::1 metric 1024"
HELD = TakenOver(nic="nic0", addresses=(V4, V6, OTHER_V6), routes=(ROUTE,), bridge="pw-nic0")
LEDGER = Ledger(nics=(HELD,))
DESIRED = desired_state(1, nics=("nic0",))


def observed(*on_nic: str, on_bridge: tuple[str, ...], routes: tuple[str, ...]) -> ObservedState:
    return ObservedState(
        nics=(having(*on_nic),),
        bridges=DESIRED.bridges,
        moved_addresses=tuple(Address(interface="pw-nic0", address=a) for a in on_bridge),
        bridge_routes=routes,
    )


def having(*commands: str) -> NicFacts:
    return nic("nic0", *(c.split()[0] for c in commands), address_commands=commands)


def moves(steps: tuple[Step, ...]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(s.held.addresses, s.held.routes) for s in steps if isinstance(s, NicStep)]


def test_only_what_is_missing_on_the_bridge_is_due() -> None:
    moved = ROUTE.replace("nic0", "pw-nic0")
    whole = observed(on_bridge=("fd07::1/64", "fd08::1/64"), routes=(moved,))
    assert moves(difference(DESIRED, whole, LEDGER)) == []
    one = observed(on_bridge=("fd07::1/64",), routes=(moved,))
    assert moves(difference(DESIRED, one, LEDGER)) == [((OTHER_V6,), ())]
    # With an address goes the source of its routes.
    bare = moved.replace(" src fd08::1", "")
    none = observed(V6, on_bridge=(), routes=(bare,))
    assert moves(difference(DESIRED, none, LEDGER)) == [((V6, OTHER_V6), (ROUTE,))]


def test_they_move_though_an_address_of_ipv4_must_stay() -> None:
    """Another program's address would go with that one."""
    seen = observed(V4, "10.7.0.9/24", V6, OTHER_V6, on_bridge=(), routes=())
    steps, refused = hold_back(difference(DESIRED, seen, LEDGER), seen, LEDGER)
    assert moves(steps) == [((V6, OTHER_V6), (ROUTE,))]
    (refusal,) = refused
    assert "moving 10.7.0.1/24 to pw-nic0 would take away address 10.7.0.9/24" in refusal.what


def test_they_are_ours_on_the_bridge_and_may_go_with_it() -> None:
    assert moved_v6("pw-nic0", LEDGER) == ("fd07::1/64", "fd08::1/64")
    assert ("pw-nic0", "fd07::1/64") in (unmarked(DESIRED, LEDGER).addresses or ())
    whole = observed(on_bridge=("fd07::1/64", "fd08::1/64"), routes=())
    (removal,) = (s for s in difference(None, whole, LEDGER) if isinstance(s, EntryStep))
    assert {"fd07::1/64", "fd08::1/64"} <= {*removal.with_it}


def test_an_address_is_back_with_its_flag_only() -> None:
    """An undo that ended in its midst leaves `nodad` on it."""
    taken = TakenOver(nic="nic0", addresses=(V6, OTHER_V6))
    assert has_back(taken, having(V6, OTHER_V6))
    assert not has_back(taken, having(f"{V6} nodad", OTHER_V6))
    assert not has_back(taken, having(V6))


def test_a_route_from_an_address_elsewhere_is_given_back() -> None:
    taken = HELD.model_copy(update={"addresses": (V4, V6)})
    seen = observed(on_bridge=(), routes=())
    assert givable(taken, seen).routes == ()
    loopback = (Address(interface="lo", address="fd08::1/128"),)
    there = seen.model_copy(update={"addresses_elsewhere": loopback})
    assert givable(taken, there).routes == (ROUTE,)
