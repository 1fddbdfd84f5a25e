"""Whose a rule or a route is: ours has all of our marks, and another program may use any one."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from socket import AF_INET6
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.contract.entries import PROTOCOL, Route, Rule
from placewire.agent.contract.state import ObservedState
from placewire.agent.drivers import policy_routing, routes
from placewire.agent.reconcile.foreign_kinds import INTERFACE_RULES, OTHER_RULES
from placewire.agent.reconcile.interface_rules import (
    bridges_over,
    command_for_bridges,
    rules_naming,
)
from placewire.agent.reconcile.refusals_held import named_refusals
from tests.agent.observed_states import nic as observed_nic


class Message(dict[str, Any]):
    """A netlink message as pyroute2 gives it: fields, and attributes by name."""

    def __init__(self, attributes: Mapping[str, Any], **fields: Any) -> None:
        super().__init__(fields, attrs=list(attributes.items()))
        self._attributes = attributes

    def get_attr(self, name: str) -> Any:
        return self._attributes.get(name)


def rule(priority: int, table: int, protocol: int) -> Message:
    attributes = {
        "FRA_PRIORITY": priority, "FRA_TABLE": table, "FRA_SRC": "10.1.0.0",
        "FRA_PROTOCOL": protocol,
    }  # fmt: skip
    return Message(attributes, src_len=16, table=min(table, 252))


def route(table: int, protocol: int) -> Message:
    attributes = {"RTA_TABLE": table, "RTA_DST": "10.44.0.0", "RTA_OIF": 9}
    return Message(attributes, table=min(table, 252), proto=protocol, dst_len=16)


class Kernel:
    """Answers in the place of netlink."""

    rules: tuple[Message, ...] = ()
    routes: tuple[Message, ...] = ()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None: ...

    def get_rules(self, family: int) -> tuple[Message, ...]:
        return self.rules

    def get_routes(self, family: int) -> tuple[Message, ...]:
        return self.routes


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    answers = Kernel()
    monkeypatch.setattr(policy_routing, "IPRoute", lambda: answers)
    return answers


def test_a_rule_is_ours_by_protocol_priority_and_table(kernel: Kernel) -> None:
    kernel.rules = (
        rule(18000, 8000, PROTOCOL),
        rule(18001, 100, PROTOCOL),
        rule(18002, 8000, 4),
        rule(100, 8000, PROTOCOL),
        rule(100, 100, PROTOCOL),
    )
    ours, foreign = policy_routing.read_rules()
    assert ours == [Rule(priority=18000, source="10.1.0.0/16", table=8000)]
    assert [entry.key for entry in foreign if entry.collection == "rules"] == ["18001", "18002"]
    in_our_tables = [entry for entry in foreign if entry.collection == OTHER_RULES]
    assert [entry.key for entry in in_our_tables] == [
        "table 8000 18002: from 10.1.0.0/16 lookup 8000",
        "table 8000 100: from 10.1.0.0/16 lookup 8000",
    ]


def test_a_route_is_ours_by_protocol_and_table(kernel: Kernel) -> None:
    kernel.routes = (route(8000, PROTOCOL), route(8001, 4), route(254, PROTOCOL), route(7, 4))
    ours, foreign = policy_routing.read_routes({9: "pw-nic0"})
    assert ours == [
        Route(table=8000, destination="10.44.0.0/16", interface="pw-nic0", source="")
    ]  # fmt: skip
    assert [entry.key for entry in foreign] == ["table 8001 10.44.0.0/16"]


ROUTES = """\
default via 10.7.0.254 dev nic0 proto 4
10.44.0.0/16 via 10.7.0.254 dev nic0 proto 80
10.45.0.0/16 via 10.7.0.254 dev nic0 table 100 proto 80
10.7.0.0/24 dev pw-nic0 table 8000 proto 80 scope 253 src 10.7.0.1
10.7.1.0/24 dev pw-nic1 table 8001 proto 80 scope 253 src 10.7.1.1
"""


def test_routes_of_others_with_our_protocol_are_seen_where_they_may_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They go with a NIC's address, and so are moved and put back with it."""
    of_v6 = "fd01::/64 dev pw-nic0 table 8000 proto 80\nunreachable default dev default proto 80\n"
    monkeypatch.setattr(routes, "run", lambda words: of_v6 if "-6" in words else ROUTES)
    assert routes.read_routes() == [
        "fd01::/64 dev pw-nic0 table 8000 proto 80",
        "unreachable ::/0 dev default proto 80",
        *ROUTES.splitlines()[:3],
    ], "ours are IPv4 only"


def named(interface: str, *, priority: int = 9, **more: Any) -> Message:
    attributes = {"FRA_PRIORITY": priority, "FRA_TABLE": 61, "FRA_IIFNAME": interface}
    fields = {"src_len": 0, "dst_len": 16, "tos": 0, "table": 61, "action": 1, "flags": 0}
    return Message(attributes | more, **fields)


def test_rules_that_name_an_interface_are_told_as_ip_takes_them(kernel: Kernel) -> None:
    kernel.rules = (
        rule(100, 100, 4),
        named("nic0"),
        named("nic1", FRA_DST="10.1.0.0", FRA_FWMARK=7, FRA_FWMASK=255, FRA_OIFNAME="nic2",
              FRA_IP_PROTO=6, FRA_DPORT_RANGE="80:90", FRA_UID_RANGE="0:10",
              FRA_SUPPRESS_PREFIXLEN=0),
    )  # fmt: skip
    _, foreign = policy_routing.read_rules()
    assert {entry.collection for entry in foreign} == {INTERFACE_RULES}
    words = (
        "priority 9 from all iif nic0 table 61",
        "priority 9 from all to 10.1.0.0/16 fwmark 0x7/0xff iif nic1 oif nic2 ipproto 6 "
        "dport 80-90 uidrange 0-10 table 61 suppress_prefixlength 0",
    )
    assert [entry.text for entry in foreign] == [*words, *words]
    assert [entry.remedy for entry in foreign] == [
        f"{command} del {text}" for command in ("ip rule", "ip -6 rule") for text in words
    ]


def test_a_mark_of_0_has_a_mask_alone(kernel: Kernel) -> None:
    kernel.rules = (named("nic0", FRA_FWMASK=255),)
    entry = policy_routing.read_rules()[1][0]
    assert entry.remedy == "ip rule del priority 9 from all fwmark 0x0/0xff iif nic0 table 61"


@pytest.mark.parametrize(
    "more", [{"FRA_TUN_ID": 5}, {"FRA_FLOW": 7}, {"FRA_SUPPRESS_IFGROUP": 0}, {"FRA_L3MDEV": 1},
             {"UNKNOWN": {"header": {"type": 25}}}],
)  # fmt: skip
def test_a_rule_with_a_condition_that_is_not_told_has_no_command(
    kernel: Kernel, more: dict[str, Any]
) -> None:
    kernel.rules = (named("nic0", **more), named("pw-nic0", **more), named("pw-nic0"))
    foreign = policy_routing.read_rules()[1]
    assert foreign[0].text.endswith("iif nic0 table 61 ...") and foreign[0].remedy == ""
    nic = observed_nic("nic0")
    observed = ObservedState(foreign=tuple(foreign))
    over = {"nic0": "pw-nic0"}
    assert len(rules_naming(nic, over, observed)) == 2, "no rule is the same as it"
    (refusal, _) = named_refusals(nic, over, observed)
    assert "iif" not in refusal.remedy and "remove it" in refusal.remedy


def test_a_kernel_without_ipv6_has_no_such_rules(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_rules(family: int) -> tuple[Message, ...]:
        if family == AF_INET6:
            raise NetlinkError(errno.EAFNOSUPPORT, "no such family")
        return (named("nic0"),)

    monkeypatch.setattr(kernel, "get_rules", get_rules)
    (entry,) = policy_routing.read_rules()[1]
    assert entry.remedy.startswith("ip rule del")


def test_a_rule_beside_one_for_the_bridge_is_in_nobody_s_way(kernel: Kernel) -> None:
    nic = observed_nic("nic0", other_names=("rail0",))
    other = observed_nic("nic2")

    def found(*rules: Message) -> list[str]:
        kernel.rules = rules
        observed = ObservedState(nics=(nic, other), foreign=tuple(policy_routing.read_rules()[1]))
        over = bridges_over({"nic0": "pw-nic0", "nic2": "pw-nic2"}, observed)
        return [command_for_bridges(r, over) for r in rules_naming(nic, over, observed)]

    add = "priority 9 from all iif pw-nic0 table 61"
    assert found(named("nic0")) == [f"ip rule add {add}", f"ip -6 rule add {add}"]
    assert found(named("rail0")) == [f"ip rule add {add}", f"ip -6 rule add {add}"]
    assert len(found(named("nic0"), named("pw-nic0", FRA_FWMARK=1))) == 2
    assert found(named("nic0"), named("pw-nic0", priority=8)) == []
    assert found(named("nic1"), named("pw-nic0")) == []

    between = named("nic0", FRA_OIFNAME="nic2")
    both = "priority 9 from all iif pw-nic0 oif pw-nic2 table 61"
    assert found(between) == [f"ip rule add {both}", f"ip -6 rule add {both}"]
    assert found(between, named("pw-nic0", FRA_OIFNAME="pw-nic2")) == []
