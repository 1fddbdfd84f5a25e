"""Commands that root is told to paste run nothing of the names in them, which others gave. The
kernel takes every name without blanks, slashes and colons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from placewire.agent.contract.entries import BRIDGE_PREFIX, Bridge, Shaper
from placewire.agent.contract.state import ForeignEntry, Ledger, NicFacts, ObservedState, TakenOver
from placewire.agent.doctor.checks_others import _not_ours, _rules_by_interface
from placewire.agent.drivers import observing, on_bridges, on_queues, traffic_control
from placewire.agent.drivers.disciplines import Discipline
from placewire.agent.drivers.openflow import parse_flows, parse_groups_and_meters
from placewire.agent.reconcile.foreign_kinds import INTERFACE_RULES, SHAPERS
from placewire.agent.reconcile.goes_with import goes_with_move
from placewire.agent.reconcile.hold_back import hold_back
from placewire.agent.reconcile.ledger import owed_refusals
from placewire.agent.reconcile.not_as_before import stays_up_sentences
from placewire.agent.reconcile.refusals_held import (
    doubled_refusals,
    holding_refusals,
    lost_refusals,
    named_refusals,
    source_refusals,
)
from placewire.agent.reconcile.refusals_nics import bridge_refusals
from placewire.agent.reconcile.refusals_queues import speed_refusals
from placewire.agent.reconcile.steps import EntryStep
from tests.agent.observed_states import nic
from tests.agent.states import desired_state

ODD = "n;reboot"
# In a sentence, they stand in backquotes or parentheses.
_COMMANDS = re.compile(r"`([^`]+)`|\(((?:ip|tc|sysctl|ovs-vsctl|nft) [^)]*)\)")
ROUTE = f"10.60.0.0/16 dev {ODD} proto 4"
V6 = "2001:db8::7/64"


def requires_quotes(said: str) -> None:
    """Each command in what is said has the odd name only in quotes, and one has it."""
    commands = [a or b for a, b in _COMMANDS.findall(said)] or [said]
    assert any(ODD in command for command in commands), said
    for command in commands:
        assert ODD not in re.sub("'[^']*'", "", command), said


def on_odd_bridge(view: Any) -> Iterator[ForeignEntry]:
    yield from on_bridges._above("pw-nic0", [ODD])
    yield from on_bridges._as_port(ODD, "br0")
    yield from on_bridges._neighbours(ODD, "proxy", [{"dev": ODD, "dst": "10.7.0.9"}])
    yield from on_bridges._disciplines(ODD, view, offloads=False)
    yield on_bridges._route(ROUTE, "")
    address = {"family": "inet", "local": "10.99.0.7", "prefixlen": 24, "scope": "0"}
    yield from on_bridges._addresses(ODD, [address], ())
    yield from parse_flows(ODD, " cookie=0x7, priority=9,arp actions=drop")[1]
    yield from parse_groups_and_meters(ODD, " group_id=5,type=all\n")


def on_odd_nic(view: Any) -> Iterator[ForeignEntry]:
    yield from observing._foreign_interfaces([f"{BRIDGE_PREFIX}{ODD}"], ())
    yield from observing._receiving([nic(ODD, receiving_qdisc="ingress")])
    yield from on_queues.read_on_queues(view, [ODD], [], {})
    on_class = Discipline("sfq", "10:", "1:3")
    yield from traffic_control.read_foreign(ODD, [], [on_class], None)
    filters = traffic_control.parse_filters("filter parent 1: protocol all pref 6 matchall\n")
    yield from traffic_control._all_foreign(ODD, "1:", filters)


def test_what_drivers_find(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Discipline("tbf", "8001:", "")
    view = SimpleNamespace(disciplines=lambda _: [root], has_htb_of_switch=lambda _: False)
    found = [*on_odd_bridge(view), *on_odd_nic(view)]
    assert len(found) == 13
    for entry in found:
        requires_quotes(entry.remedy)


def odd_nic(**changes: Any) -> NicFacts:
    return nic(ODD, "10.7.0.1/24", **changes)


def remedies() -> Iterator[str]:
    bridge = Bridge(name="pw-x", nic=ODD, datapath="netdev", mtu_bytes=9000)
    wanted = desired_state(1, nics=(), bridges=(bridge,), take_over=(ODD,))
    for unfit in (
        {"root_qdisc": "fq"}, {"receiving_qdisc": "clsact"}, {"resolves_neighbours": False}, {},
    ):  # fmt: skip
        seen = ObservedState(nics=(odd_nic(**unfit),))
        refused = bridge_refusals(wanted, seen, "netdev", (), ())
        yield from (one.remedy for one in refused if ODD in one.remedy)
    lost = odd_nic(lost_with_addresses=(f"neigh 10.7.0.9 dev {ODD}",))
    yield from (one.remedy for one in lost_refusals(lost))
    down = odd_nic(up=False, standing=(f"address {V6}",))
    yield from (one.remedy for one in lost_refusals(down))
    advertised = nic(ODD, V6, advertised_routes=(f"::/0 dev {ODD} proto 9",))
    yield from (one.remedy for one in lost_refusals(advertised))
    for flag in ("dynamic", "dadfailed"):
        held = nic(ODD, address_commands=(f"{V6} scope 0 {flag}",))
        yield from (one.remedy for one in holding_refusals(wanted, bridge, held))
    routed = nic(ODD, routes=(f"{ROUTE} nhid 7",), doubled_routes=(ROUTE,))
    yield from (one.remedy for one in holding_refusals(wanted, bridge, routed))
    yield from (one.remedy for one in doubled_refusals(routed))
    other = ObservedState(routes_elsewhere=(f"{ROUTE} src 10.7.0.1",))
    yield from (one.remedy for one in source_refusals(nic("nic0", "10.7.0.1/24"), other))
    slow = ObservedState(nics=(odd_nic(speed_bits_per_second=1000),))
    shaped = desired_state(1, nics=(), shapers=(Shaper(nic=ODD, max_bits_per_second=2000),))
    yield from (one.remedy for one in speed_refusals(shaped, slow))
    debt = TakenOver(nic=ODD, addresses=())
    yield from (one.remedy for one in owed_refusals("s1", Ledger(owed=(debt,))))
    words = f"priority 9 from all iif {ODD} oif lo table 7"
    rule = ForeignEntry(
        collection=INTERFACE_RULES, key=words, text=words, remedy=f"ip rule del {words}"
    )
    ruled = ObservedState(nics=(odd_nic(),), foreign=(rule,))
    over = {ODD: f"{BRIDGE_PREFIX}{ODD}"}
    yield from (one.remedy for one in named_refusals(odd_nic(), over, ruled))
    facts: Any = SimpleNamespace(
        candidates=ruled.nics, observed=ruled, own=SimpleNamespace(taken_over=(ODD,)),
        others=SimpleNamespace(naming=((f"inet filter {ODD}", (ODD,)),)),
    )  # fmt: skip
    yield from (one.remedy for one in _rules_by_interface(facts))
    used = nic(ODD, "10.99.0.1/24", standing=("address 10.99.0.1/24",))
    was_down = Ledger(nics=(debt.model_copy(update={"was_up": False}),))
    (sentence,) = stays_up_sentences(None, ObservedState(nics=(used,)), was_down, 0.0)
    yield sentence
    moved = TakenOver(nic=ODD, addresses=("10.7.0.1/24",))
    beside = odd_nic(routes=(ROUTE,), lost_with_addresses=(f"neigh 10.7.0.9 dev {ODD}",))
    yield from (one.remedy for one in goes_with_move(moved, beside))
    after = nic(ODD, "10.7.0.1/24", "10.7.0.2/24")
    yield from (one.remedy for one in goes_with_move(moved, after))
    theirs = ForeignEntry(collection=SHAPERS, key=ODD, text="their QoS", on=ODD)
    step = EntryStep(None, shaped.shapers[0])
    yield from (
        one.remedy for one in hold_back([step], ObservedState(foreign=(theirs,)), Ledger())[1]
    )
    yield _not_ours(theirs).remedy


def test_what_refusals_advise() -> None:
    found = [*remedies()]
    assert len(found) == 26, "\n".join(found)
    for remedy in found:
        requires_quotes(remedy)
