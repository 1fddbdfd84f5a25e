"""Whose a rule or a route is: ours has all of our marks, and another program may use any one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from placewire.agent.contract.entries import PROTOCOL, Route, Rule
from placewire.agent.drivers import policy_routing, routes
from placewire.agent.reconcile.foreign_kinds import OTHER_RULES


class Message(dict[str, Any]):
    """A netlink message as pyroute2 gives it: fields, and attributes by name."""

    def __init__(self, attributes: Mapping[str, Any], **fields: Any) -> None:
        super().__init__(fields)
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
