"""Difference, order of steps, and refusals: pure decisions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.agent.contract.entries import (
    Address,
    Bridge,
    Classifier,
    Flow,
    Queue,
    Rule,
    Shaper,
    Sysctl,
)
from placewire.agent.contract.state import (
    Collections,
    DesiredState,
    EffectiveQueue,
    ForeignEntry,
    Ledger,
    NicFacts,
    ObservedState,
    TakenOver,
    UnopenedNic,
)
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.effective import ineffective_queues
from placewire.agent.reconcile.foreign_kinds import RECEIVERS
from placewire.agent.reconcile.hold_back import hold_back
from placewire.agent.reconcile.ledger import extended, marked_as_held, settled
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step
from placewire.agent.reconcile.unmarkable import unmarked
from placewire.agent.reconcile.validate import refusals
from tests.agent.observed_states import BARE, FACTS, WAY, nic
from tests.agent.states import desired_state, queue


def applied(observed: ObservedState, steps: tuple[Step, ...]) -> ObservedState:
    """The server after these steps, if it did exactly what they say."""
    entries = {
        name: {e.key: e for e in getattr(observed, name)} for name in Collections.model_fields
    }
    nics = {n.name: n for n in observed.nics}
    marks = {held.bridge: held for held in observed.held}
    for step in steps:
        if isinstance(step, EntryStep) and step.mark is not None:
            marks[step.entry.key] = step.mark
        if isinstance(step, NicStep):
            held = step.held if step.direction == "back" else TakenOver(nic="", addresses=())
            nics[step.held.nic] = nics[step.held.nic].model_copy(
                update={"addresses": held.addresses, "address_commands": held.addresses,
                        "routes": held.routes}
            )  # fmt: skip
        elif step.after is None:
            del entries[step.collection][step.entry.key]
        else:
            entries[step.collection][step.entry.key] = step.after
    fields = {name: tuple(held.values()) for name, held in entries.items()}
    classes = tuple(
        EffectiveQueue(
            nic=q.nic, queue_id=q.queue_id, min_bits_per_second=q.min_bits_per_second,
            max_bits_per_second=q.max_bits_per_second, burst_bytes=q.burst_bits // 8,
        )
        for q in entries["queues"].values()
    )  # fmt: skip
    return observed.model_copy(
        update={
            **fields,
            "nics": tuple(nics.values()),
            "effective_queues": classes,
            "held": tuple(held for name, held in marks.items() if name in entries["bridges"]),
        }
    )


def collections_of(state: Collections) -> dict[str, set[Any]]:
    return {name: set(getattr(state, name)) for name in Collections.model_fields}


some_states = st.builds(
    lambda nics, low, high, keep: desired_state(1, (low, high), nics).model_copy(
        update=dict.fromkeys(keep, ())
    ),
    st.sampled_from([("nic0",), ("nic1",), ("nic0", "nic1")]),
    st.sampled_from([1_000_000, 2_000_000]),
    st.sampled_from([5_000_000, 9_000_000]),
    st.sets(st.sampled_from(["flows", "classifiers", "rules", "routes", "sysctls"])),
)


@settings(max_examples=100, deadline=None)
@given(first=some_states, second=some_states)
def test_a_difference_applied_leaves_none_and_can_be_undone(
    first: DesiredState, second: DesiredState
) -> None:
    ledger = extended(first, BARE, Ledger())
    one = applied(BARE, difference(first, BARE, ledger))
    assert difference(first, one, ledger) == ()
    both = extended(second, one, ledger)
    two = applied(one, difference(second, one, both))
    assert difference(second, two, both) == ()
    wanted = collections_of(canonical(second))
    found = collections_of(two)
    assert {k: v for k, v in found.items() if k != "sysctls"} == {
        k: v for k, v in wanted.items() if k != "sysctls"
    }
    gone = applied(two, difference(None, two, both))
    assert {n.name: n for n in gone.nics} == {n.name: n for n in BARE.nics}
    assert all(not held for name, held in collections_of(gone).items() if name != "sysctls")
    assert BARE.sysctls[0] in gone.sysctls


def test_the_order_is_outwards_then_back() -> None:
    desired = desired_state(1, nics=("nic0",))
    ledger = extended(desired, BARE, Ledger())
    steps = difference(desired, BARE, ledger)
    assert list(dict.fromkeys(step.collection for step in steps)) == [
        "bridges", "addresses", "nics", "sysctls", "shapers", "queues", "flows", "classifiers",
        "routes", "rules",
    ]  # fmt: skip
    up = applied(BARE, steps)
    down = difference(None, up, ledger)
    assert list(dict.fromkeys(step.collection for step in down)) == [
        "rules", "routes", "classifiers", "flows", "queues", "shapers", "sysctls", "addresses",
        "bridges", "nics",
    ]  # fmt: skip


def test_what_appears_comes_before_what_goes() -> None:
    first = desired_state(1, nics=("nic0",))
    up = applied(BARE, difference(first, BARE, Ledger()))
    moved = (Flow(bridge="pw-nic0", destination="10.7.0.9", queue_id=2),)
    steps = difference(first.model_copy(update={"flows": moved}), up, Ledger())
    assert [step.action for step in steps if isinstance(step, EntryStep)] == [
        "add", "remove", "remove",
    ]  # fmt: skip


def test_a_sysctl_that_is_no_longer_wanted_gets_its_former_value() -> None:
    desired = desired_state(1, nics=("nic0",))
    ledger = extended(desired, BARE, Ledger())
    up = applied(BARE, difference(desired, BARE, ledger))
    fewer = desired.model_copy(update={"sysctls": desired.sysctls[:1]})
    mark, step = difference(fewer, up, ledger)
    assert isinstance(mark, EntryStep) and mark.mark is not None
    assert mark.mark.sysctls == (), "from then on it is its owner's"
    assert step.as_change().action == "replace" and '"0"' in str(step.as_change().after)


def test_the_ledger_keeps_first_values_and_forgets_what_is_back() -> None:
    desired = desired_state(1)
    ledger = extended(desired, BARE, Ledger())
    later = BARE.model_copy(update={"nics": (nic("nic0"), nic("nic1"))})
    assert extended(desired, later, ledger) == ledger
    fewer = settled(desired_state(1, nics=("nic1",)), BARE, ledger)
    assert [taken.nic for taken in fewer.nics] == ["nic1"] and not fewer.owed
    assert settled(None, BARE, ledger) == Ledger()


@pytest.mark.parametrize(
    ("rate", "burst_bytes", "fine"),
    [(10_000_000, 15_000, True), (10_050_000, 15_000, True), (10_200_000, 15_000, False),
     (10_000_000, 1_500, False)],
)  # fmt: skip
def test_a_class_is_as_wanted_within_a_percent(rate: int, burst_bytes: int, fine: bool) -> None:
    wanted = queue("nic0", 2, 10_000_000, 10_000_000, "x")
    desired = desired_state(1, queues=(wanted,))
    found = EffectiveQueue(
        nic="nic0", queue_id=2, min_bits_per_second=rate, max_bits_per_second=rate,
        burst_bytes=burst_bytes,
    )  # fmt: skip
    assert (ineffective_queues(desired, ObservedState(effective_queues=(found,))) == ()) is fine
    assert "no class" in ineffective_queues(desired, ObservedState())[0]


@pytest.mark.parametrize(
    ("burst_bytes", "fine"),
    [(6_056, True), (9_064, True), (5_000, False), (9_500, False)],
)
def test_a_burst_may_be_as_large_as_a_frame_of_the_nic(burst_bytes: int, fine: bool) -> None:
    wanted = queue("nic0", 2, 10_000_000, 10_000_000, "x").model_copy(update={"burst_bits": 48_448})
    found = EffectiveQueue(
        nic="nic0", queue_id=2, min_bits_per_second=10_000_000, max_bits_per_second=10_000_000,
        burst_bytes=burst_bytes, least_burst_bytes=9_064,
    )  # fmt: skip
    said = ineffective_queues(
        desired_state(1, queues=(wanted,)), ObservedState(effective_queues=(found,))
    )
    assert (said == ()) is fine


@pytest.mark.parametrize("gone", [False, True])
def test_shaping_that_the_kernel_lost_is_replaced_on_that_nic_only(gone: bool) -> None:
    desired = desired_state(1)
    up = applied(BARE, difference(desired, BARE, Ledger()))
    slow = up.effective_queues[2].model_copy(update={"min_bits_per_second": 1_000_000})
    classes = () if gone else (slow, *up.effective_queues[3:4])
    rest = tuple(c for c in up.effective_queues if c.nic == "nic1")
    drifted = up.model_copy(update={"effective_queues": (*classes, *rest)})
    steps = difference(desired, drifted, Ledger())
    assert [(s.as_change().action, s.collection) for s in steps] == [
        *[("replace", "shapers")], *[("replace", "queues")] * 4, *[("replace", "classifiers")] * 3,
    ]  # fmt: skip
    assert all("nic0" in step.as_change().key for step in steps)
    assert difference(desired, applied(drifted, steps), Ledger()) == ()
    assert all(step.as_change().action == "remove" or step.collection in ("nics", "sysctls")
               for step in difference(None, drifted, Ledger()))  # fmt: skip


@pytest.mark.parametrize("which", ["bridge", "NIC"])
def test_a_bridge_that_is_down_is_brought_up(which: str) -> None:
    desired = desired_state(1)
    up = applied(BARE, difference(desired, BARE, Ledger()))
    nics = tuple(n.model_copy(update={"up": n.name != "nic1"}) for n in up.nics)
    found: dict[str, dict[str, Any]] = {
        "bridge": {"bridges_down": ("pw-nic1",)},
        "NIC": {"nics": nics},
    }
    down = found[which]
    (step,) = difference(desired, up.model_copy(update=down), Ledger())
    assert isinstance(step, EntryStep) and step.before == step.after == desired.bridges[1]
    left = difference(None, up.model_copy(update=down), Ledger())
    assert all(step.as_change().action == "remove" for step in left)


def test_an_address_without_the_route_of_its_subnet_is_made_anew() -> None:
    desired = desired_state(1)
    up = applied(BARE, difference(desired, BARE, Ledger()))
    address = desired.addresses[1]
    observed = up.model_copy(update={"unrouted": (address.key,)})
    steps = difference(desired, observed, Ledger())
    of_addresses = [step for step in steps if step.as_change().collection == "addresses"]
    assert of_addresses == [EntryStep(address, address)]


def test_routes_of_others_are_on_the_bridge_as_long_as_it_is_in_force() -> None:
    route = "default via 10.7.0.254 dev nic0 proto static"
    bare = BARE.model_copy(update={"nics": (nic("nic0", "10.7.0.1/24", routes=(route,)),)})
    desired = desired_state(1, nics=("nic0",))
    ledger = extended(desired, bare, Ledger())
    up = applied(bare, difference(desired, bare, ledger))
    (step,) = difference(desired, up, ledger)
    assert isinstance(step, NicStep) and step.direction == "to bridge"
    assert (step.held.routes, step.held.addresses) == ((route,), ())
    moved = {"bridge_routes": ("default via 10.7.0.254 dev pw-nic0 proto static",)}
    assert difference(desired, up.model_copy(update=moved), ledger) == ()


def test_the_route_of_a_gateways_subnet_is_moved_before_the_gateways() -> None:
    subnet = "10.7.0.0/24 dev nic0 proto kernel scope link src 10.7.0.1 metric 100"
    route = "default via 10.7.0.254 dev nic0 proto static"
    held = nic("nic0", "10.7.0.1/24", routes=(subnet, route))
    bare = BARE.model_copy(update={"nics": (held,)})
    desired = desired_state(1, nics=("nic0",))
    ledger = extended(desired, bare, Ledger())
    up = applied(bare, difference(desired, bare, ledger))
    # Somebody put the gateway's on the NIC anew, and the subnet's was lost with the bridge.
    up = up.model_copy(update={"nics": (held.model_copy(update={"routes": (route,)}),)})
    (step,) = (s for s in difference(desired, up, ledger) if isinstance(s, NicStep))
    assert step.held.routes == (subnet, route)


def test_the_plain_state_is_accepted() -> None:
    assert refusals(desired_state(1), BARE, Ledger(), FACTS, WAY) == ()


def with_queues(*queues: Queue) -> dict[str, Any]:
    kept = tuple(q for q in desired_state().queues if q.key not in {new.key for new in queues})
    return {"queues": (*kept, *queues)}


def without_default_queue() -> dict[str, Any]:
    return {"queues": tuple(q for q in desired_state().queues if q.key != "nic0 queue 0")}


def bridges(**changes: Any) -> dict[str, Any]:
    first, *others = desired_state().bridges
    return {"bridges": (first.model_copy(update=changes), *others)}


def fast(rate: int) -> dict[str, Any]:
    shapers = tuple(Shaper(nic=n, max_bits_per_second=rate) for n in ("nic0", "nic1"))
    return {"shapers": shapers}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"server": "s2"}, "is for server 's2'"),
        (with_queues(queue("nic0", 2, 9, 8, "x")), "not 0 < min <= max"),
        (with_queues(queue("nic0", 2, 49_000_000, 50_000_000, "x")), "minimums add up to"),
        (with_queues(*(queue("nic0", k, 1, 9, "x") for k in range(2, 5002))), "minimums add up to"),
        (with_queues(queue("nic0", 2, 1, 60_000_000, "x")), "above its NIC's"),
        (with_queues(queue("nic0", 61_440, 1, 2, "x")), "outside 0..61439"),
        (with_queues(queue("nic9", 0, 1, 2, "x")), "its NIC has no shaper"),
        (with_queues(queue("nic0", 2, 1, 2, "x").model_copy(update={"burst_bits": 0})), "no burst"),
        (without_default_queue(), "queue 0 is not defined"),
        (fast(40_000_000_000), "more than Open vSwitch 3.1.0 can count"),
        (bridges(name="pw-a-very-long-n0"), "more than 15"),
        (bridges(name="br0"), "does not start with pw-"),
        (bridges(nic="nic7"), "does not exist here"),
        (bridges(nic="mgmt"), "is protected"),
        (bridges(nic="nic1"), "wanted in two bridges"),
        (bridges(datapath="system"), "this server has netdev"),
        (bridges(mtu_bytes=9000), "has MTU 1500"),
        ({"take_over": ()}, "holds 10.7.0.1/24"),
        ({"addresses": (Address(interface="pw-nic0", address="10.7.0.1/24"),)}, "does not give it"),
        ({"addresses": (Address(interface="pw-nic0", address="10.9.0.5/16"),)}, "overlaps with"),
        ({"addresses": (Address(interface="pw-nic0", address="fd00::1/64"),)}, "not an IPv4"),
        ({"addresses": (Address(interface="eth0", address="10.1.0.1/24"),)}, "no bridge of this"),
        (
            {"addresses": tuple(Address(interface=f"pw-nic{i}", address=f"10.7.0.{i + 1}/24")
                                for i in (0, 1))},
            "is in the same subnet as",
        ),
        ({"flows": (Flow(bridge="pw-nic0", destination="10.7.0.9", queue_id=9),)}, "not defined"),
        ({"flows": (Flow(bridge="pw-nic0", destination="fd00::9", queue_id=2),)}, "only IPv4"),
        ({"rules": (Rule(priority=5, source="10.7.0.1", table=8000),)}, "priority is outside"),
        ({"rules": (Rule(priority=18000, source="10.7.0.1", table=254),)}, "table is outside"),
        *(
            ({"rules": (Rule(priority=18000, source=source, table=8000),)}, "no single address of")
            for source in ("0.0.0.0/0", "10.7.0.0/24", "10.9.0.1/32", "10.7.0.2")
        ),
        *(
            ({"sysctls": (Sysctl(name=name, value="1"),)}, expected)
            for name, expected in (
                ("net.ipv4.conf.mgmt.rp_filter", "of mgmt, which is protected"),
                ("net.ipv4.conf.eth9.rp_filter", "of eth9, no bridge or NIC of this state"),
            )
        ),
        ({"rules": desired_state().rules * 2}, "occurs twice"),
        (
            {"routes": tuple(r.model_copy(update={"source": "10.7.9.9"})
                             for r in desired_state().routes)},
            "no address of pw-nic0",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(changes: dict[str, Any], expected: str) -> None:
    found = refusals(desired_state(1, **changes), BARE, Ledger(), FACTS, WAY)
    assert any(expected in refusal.what for refusal in found), found


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (nic("nic0", "10.7.0.1/24", bridge="br-ex"), "already a port of br-ex"),
        (
            nic("nic0", address_commands=("fd00::7/64 scope 0 mngtmpaddr dynamic",)),
            "got fd00::7/64 for a limited time (of a router's advertisement",
        ),
        (nic("nic0", address_commands=("fd00::7/64 scope 0 dadfailed",)), "somebody else on its"),
        (
            nic("nic0", address_commands=("fd00::7 peer fd00::8/128 scope 0",)),
            "whose peer or flags",
        ),
        (nic("nic0", address_commands=("fd00::7/64 scope 0 mngtmpaddr",)), "whose peer or flags"),
        (nic("nic0", "10.7.0.1/24", root_qdisc="fq"), "has a fq queueing discipline"),
        (nic("nic0", "10.7.0.1/24", receiving_qdisc="clsact"), "has clsact filters"),
        (nic("nic0", "10.7.0.1/24", address_commands=("10.7.0.1/24 dynamic",)), "DHCP"),
        (nic("nic0", routes=("default nexthop via 1.2.3.4 dev nic0 nexthop",)), "multipath"),
        (nic("nic0", routes=("10.8.0.0/16 nhid 7 via 1.2.3.4 dev nic0",)), "nhid 7 via"),
        (nic("nic0", routes=("2001:db8::/32 dev nic0 metric 1024 expires 0",)), "as it is"),
        (nic("nic0", lost_with_addresses=("neigh proxy fd00::9 dev nic0",)), "be of no use while"),
        (nic("nic0", routes=("2001:db8::/32 from fd00::/64 dev nic0",)), "as it is"),
        (nic("nic0", "10.9.0.1/24"), "reaches its controller"),
        (
            nic("nic0", "fd00::7/64", advertised_routes=("::/0 via fe80::1 dev nic0 proto 9",)),
            "'::/0 via fe80::1 dev nic0 proto 9' of a router's advertisement beside",
        ),
        (nic("nic0", kind="macvlan"), "a link of type macvlan, which cannot be the port"),
        (nic("nic0", link_type="infiniband"), "a link of type infiniband, which cannot"),
        (nic("nic0", link_type="none", kind="tun"), "a link of type none, which cannot"),
        (nic("nic0", resolves_neighbours=False), "finds no neighbours (NOARP or POINTOPOINT)"),
        (
            nic("nic0", "10.7.0.1/24", speed_bits_per_second=10_000_000),
            "runs at 10 Mbit/s, less than the 50",
        ),
    ],
)
def test_nics_that_must_not_be_taken_over(facts: NicFacts, expected: str) -> None:
    observed = BARE.model_copy(update={"nics": (facts, *BARE.nics[1:])})
    found = refusals(desired_state(1), observed, Ledger(), FACTS, WAY)
    assert any(expected in refusal.what for refusal in found), found


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        ("fd00::9/64 scope 0", True), ("fd00::9/64 scope 0 noprefixroute", False),
        ("fd00::9/64 scope 0 metric 70", False), ("fd00:0:0:1::9/64 scope 0", False),
    ],
)  # fmt: skip
def test_an_ipv6_subnet_in_common_with_another_interface_is_refused(
    other: str, is_refused: bool
) -> None:
    nics = (nic("nic0", "fd00::1/64", address_commands=("fd00::1/64 scope 0",)),
            nic("eth9", address_commands=(other,)))  # fmt: skip
    observed = BARE.model_copy(update={"nics": nics})
    desired = desired_state(1, nics=("nic0",))
    found = refusals(desired, observed, Ledger(), FACTS, WAY)
    assert any("eth9 has fd00::9/64 of the same subnet" in r.what for r in found) == is_refused


@pytest.mark.parametrize("over", ["mgmt", "br-ex", "lo"])
def test_a_nic_whose_address_others_send_from_is_not_taken_over(over: str) -> None:
    """An undo takes the address off the bridge, and the kernel that route with it."""
    route = f"10.62.0.0/16 dev {over} src 10.7.0.1"
    mgmt = nic("mgmt", "10.9.0.1/24", routes=(route,) if over == "mgmt" else ())
    elsewhere = () if over == "mgmt" else (route,)
    observed = BARE.model_copy(
        update={"nics": (*BARE.nics[:2], mgmt), "routes_elsewhere": elsewhere}
    )
    (refusal,) = refusals(desired_state(1), observed, Ledger(), FACTS, WAY)
    assert f"from which {over} sends" in refusal.what
    assert refusal.where == "NIC nic0" and "10.62.0.0/16" in refusal.remedy
    taken = Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",)),))
    assert refusals(desired_state(1), observed, taken, FACTS, WAY) == ()


@pytest.mark.parametrize(
    ("collection", "key"),
    [
        ("bridges", "pw-nic0"),
        ("flows", "pw-nic0 to 10.7.0.2"),
        ("classifiers", "nic0"),
        ("rules", "18000"),
        ("routes", "table 8000 10.7.0.0/24"),
        ("routes", "table 8000 0.0.0.0/0"),
        ("other rules", "table 8001 5: from 10.1.0.0/16 lookup 8001"),
    ],
)
def test_foreign_entries_in_our_ranges_collide(collection: str, key: str) -> None:
    foreign = ForeignEntry(collection=collection, key=key, text="theirs")
    observed = BARE.model_copy(update={"foreign": (foreign,)})
    assert refusals(desired_state(1), observed, Ledger(), FACTS, WAY)
    elsewhere = foreign.model_copy(update={"key": "elsewhere"})
    observed = BARE.model_copy(update={"foreign": (elsewhere,)})
    assert refusals(desired_state(1), observed, Ledger(), FACTS, WAY) == ()


def test_what_came_into_a_table_of_ours_keeps_nothing_from_being_changed() -> None:
    desired = desired_state(1)
    theirs = ForeignEntry(collection="routes", key="table 8000 0.0.0.0/0", text="theirs")
    observed = BARE.model_copy(
        update={"foreign": (theirs,), "routes": desired.routes, "rules": desired.rules}
    )
    assert refusals(desired, observed, Ledger(), FACTS, WAY) == ()


def test_our_own_bridge_is_no_obstacle() -> None:
    desired = desired_state(1)
    up = applied(BARE, difference(desired, BARE, Ledger()))
    held = tuple(
        nic(n, bridge=f"pw-{n}", root_qdisc="htb") if n != "mgmt" else nic("mgmt", "10.9.0.1/24")
        for n in ("nic0", "nic1", "mgmt")
    )
    up = up.model_copy(update={"nics": held})
    assert refusals(desired, up, Ledger(), FACTS, WAY) == ()
    moved = desired_state(1, bridges=(Bridge(name="pw-nic0", nic="nic1", datapath="netdev"),))
    assert any("already" in refusal.what for refusal in refusals(moved, up, Ledger(), FACTS, WAY))


def test_only_what_would_harm_others_is_held_back() -> None:
    desired = desired_state(1)
    ledger = extended(desired, BARE, Ledger())
    up = applied(BARE, difference(desired, BARE, ledger))
    down = difference(None, up, ledger)
    assert hold_back(down, up, ledger) == (down, ())
    port = ForeignEntry(collection="ports", key="pw-nic0", text="port op0")
    under = up.model_copy(update={"foreign": (port,)})
    harmless, (refusal,) = hold_back(down, under, ledger)
    assert refusal.where == "bridge pw-nic0" and "port op0" in refusal.what
    held = [step.as_change() for step in down if step not in harmless]
    assert [(c.collection, c.key) for c in held] == [
        ("addresses", "pw-nic0 10.7.0.1/24"), ("bridges", "pw-nic0"), ("nics", "nic0"),
    ]  # fmt: skip
    rates = desired_state(2, rates=(1_000_000, 1_000_000))
    assert hold_back(difference(rates, under, ledger), under, ledger)[1] == ()
    qos = ForeignEntry(collection="shapers", key="nic0", text="a QoS")
    bare_ports = up.model_copy(update={"foreign": (qos,), "shapers": (), "queues": ()})
    harmless, (refusal,) = hold_back(difference(desired, bare_ports, ledger), bare_ports, ledger)
    assert refusal.where == "NIC nic0"
    assert {step.entry.nic for step in harmless} == {"nic1"}  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["bridge removed", "not open"])
def test_a_nic_is_not_opened_under_the_ingress_filters_of_others(how: str) -> None:
    """Open vSwitch takes them off a NIC that it opens."""
    desired = desired_state(1)
    up = applied(BARE, difference(desired, BARE, Ledger()))
    there = ForeignEntry(collection=RECEIVERS, key="nic0", text="the ingress discipline")
    observed = up.model_copy(update={"foreign": (there,)})
    assert hold_back(difference(desired, observed, Ledger()), observed, Ledger())[1] == ()
    gone: dict[str, Any] = {"unopened": (UnopenedNic(nic="nic0"),), "rules": ()}
    if how == "bridge removed":
        gone = {"bridges": up.bridges[1:], "addresses": up.addresses[1:], "rules": ()}
    observed = observed.model_copy(update=gone)
    steps, (refusal,) = hold_back(difference(desired, observed, Ledger()), observed, Ledger())
    assert refusal.where == "NIC nic0" and "ingress" in refusal.what
    entries = [step.entry for step in steps if isinstance(step, EntryStep)]
    assert [e for e in entries if isinstance(e, Rule)] == list(desired.rules), "the rest is done"
    assert not any(isinstance(e, (Bridge, Address, Shaper, Classifier)) for e in entries)


def test_an_interface_that_a_killed_switch_left_is_taken_up_again_or_goes() -> None:
    desired = desired_state(1)
    ledger = extended(desired, BARE, Ledger())
    assert unmarked(None, ledger).bridges == {"pw-nic0", "pw-nic1"}
    assert unmarked(desired, Ledger()).bridges == set(), "it may be another's"
    left = Bridge(name="pw-nic0", nic="", datapath="netdev")
    observed = BARE.model_copy(update={"bridges": (left,)})
    assert difference(None, observed, ledger) == (EntryStep(left, None, ("10.7.0.1/24",)),)
    mark = marked_as_held(desired.bridges[0], desired, ledger)
    taken_up = EntryStep(left, desired.bridges[0], mark=mark)
    assert taken_up in difference(desired, observed, ledger)


def test_a_nic_is_no_longer_promiscuous_when_it_was_not_before() -> None:
    promiscuous = nic("nic0", "10.7.0.1/24", promiscuous=True)
    observed = BARE.model_copy(update={"nics": (promiscuous,)})
    ledger = Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",)),))
    (step,) = difference(None, observed, ledger)
    assert isinstance(step, NicStep) and not step.held.was_promiscuous
    wanted_so = extended(desired_state(1), observed, Ledger())
    assert difference(None, observed, wanted_so) == ()


def test_a_nic_that_the_kernel_datapath_had_stays_promiscuous_where_others_set_it_so() -> None:
    desired = desired_state(1, nics=("nic0",))
    (bridge,) = desired.bridges
    on_kernel = desired.model_copy(
        update={"bridges": (bridge.model_copy(update={"datapath": "system"}),)}
    )
    ledger = extended(on_kernel, BARE, Ledger())
    set_since = nic("nic0", "10.7.0.1/24", promiscuous=True)
    observed = BARE.model_copy(update={"nics": (set_since,)})
    assert difference(None, observed, ledger) == ()
    on_netdev = bridge.model_copy(update={"datapath": "netdev"})
    moved = desired.model_copy(update={"bridges": (on_netdev,)})
    assert difference(None, observed, extended(moved, observed, ledger)) != ()


def test_an_entry_that_an_earlier_version_wrote_is_of_the_userspace_datapath() -> None:
    written = TakenOver.model_validate_json('{"nic": "nic0", "addresses": ["10.7.0.1/24"]}')
    assert written.made_promiscuous


def test_a_port_of_ours_whose_mac_changed_gets_back_what_it_held() -> None:
    """A driver may give another MAC at each start; the driver's check must not take that for
    another adapter."""
    desired = desired_state(1, nics=("nic0",))
    held = TakenOver(nic="nic0", addresses=("10.7.0.1/24",), mac="02:00:00:00:99:01")
    port = nic("nic0", bridge="pw-nic0")
    observed = BARE.model_copy(update={"nics": (port,), "bridges": desired.bridges})
    steps = difference(None, observed, Ledger(nics=(held,)))
    (back,) = (step for step in steps if isinstance(step, NicStep))
    assert back.held == held.model_copy(update={"mac": port.mac}) and port.mac != held.mac


def test_shaping_that_a_port_left_on_its_nic_goes() -> None:
    shaped = nic("nic0", "10.7.0.1/24", root_qdisc="htb", left_by_switch=True)
    observed = BARE.model_copy(update={"nics": (shaped,)})
    ledger = Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",)),))
    (step,) = difference(None, observed, ledger)
    assert isinstance(step, NicStep) and step.direction == "back"
    assert difference(None, observed, Ledger()) == (), "never taken over: it may be another's"


def test_shaping_that_a_port_left_on_a_nic_of_ours_is_in_nobodys_way() -> None:
    left = nic("nic0", root_qdisc="htb", left_by_switch=True)
    theirs = left.model_copy(update={"left_by_switch": False})
    ledger = Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",)),))
    for facts, held, accepted in (
        (left, ledger, True),
        (left, Ledger(), False),
        (theirs, ledger, False),
    ):
        observed = BARE.model_copy(update={"nics": (facts, *BARE.nics[1:])})
        found = refusals(desired_state(1), observed, held, FACTS, WAY)
        assert (found == ()) == accepted, (facts, held)


def test_a_bridge_that_stays_keeps_all_its_addresses() -> None:
    """Also one that only the plan gave: others may need it."""
    extra = Address(interface="pw-nic0", address="10.8.0.1/24")
    desired = desired_state(1, addresses=(*desired_state(1).addresses, extra))
    ledger = extended(desired, BARE, Ledger())
    up = applied(BARE, difference(desired, BARE, ledger))
    port = ForeignEntry(collection="ports", key="pw-nic0", text="port op0")
    under = up.model_copy(update={"foreign": (port,)})
    harmless, _ = hold_back(difference(None, under, ledger), under, ledger)
    removed = [s.as_change().key for s in harmless if s.collection == "addresses"]
    assert removed == ["pw-nic1 10.7.1.1/24"]


def test_an_address_that_takes_another_one_with_it_stays_with_its_bridge() -> None:
    """The NIC had no address of its own, and another NIC must get its own back all the same."""
    bare = ObservedState(nics=(nic("nic0"), nic("nic1", "10.7.1.1/24")))
    desired = desired_state(1)
    ledger = extended(desired, bare, Ledger())
    up = applied(bare, difference(desired, bare, ledger))
    theirs = ForeignEntry(
        collection="addresses", key="pw-nic0 10.7.0.99/24", text="address 10.7.0.99/24",
        on="pw-nic0", remedy="ip address del 10.7.0.99/24 dev pw-nic0",
    )  # fmt: skip
    observed = up.model_copy(update={"foreign": (theirs,)})
    harmless, refused = hold_back(difference(None, observed, ledger), observed, ledger)
    assert [refusal.where for refusal in refused] == ["bridge pw-nic0"]
    gone = [step.as_change().key for step in harmless]
    assert "pw-nic0 10.7.0.1/24" not in gone and "pw-nic0" not in gone
    assert "pw-nic1 10.7.1.1/24" in gone and "pw-nic1" in gone
