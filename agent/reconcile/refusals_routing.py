"""Refusals about policy routing rules and routes."""

from __future__ import annotations

from ipaddress import IPv4Interface

from placewire.agent.contract.entries import (
    RULE_PRIORITY_BASE,
    RULE_PRIORITY_COUNT,
    TABLE_BASE,
    TABLE_COUNT,
    Route,
    Rule,
)
from placewire.agent.contract.state import DesiredState, ObservedState, Refusal

TABLES = range(TABLE_BASE, TABLE_BASE + TABLE_COUNT)
PRIORITIES = range(RULE_PRIORITY_BASE, RULE_PRIORITY_BASE + RULE_PRIORITY_COUNT)


def routing_refusals(wanted: DesiredState, observed: ObservedState) -> list[Refusal]:
    foreign = {(f.collection, f.key): f.text for f in observed.foreign}
    found = []
    for rule in wanted.rules:
        found += _rule(rule, foreign.get(("rules", str(rule.priority))))
    addresses = {
        (a.interface, a.address.split("/")[0]) for a in wanted.addresses if _is_address(a.address)
    }
    for route in wanted.routes:
        found += _route(route, addresses, foreign.get(("routes", route.key)))
    return found


def _rule(rule: Rule, foreign: str | None) -> list[Refusal]:
    where = f"rule {rule.key}"
    found = []
    if rule.priority not in PRIORITIES:
        found.append(
            _refuse(where, f"its priority is outside {_span(PRIORITIES)}", "use our range")
        )
    if rule.table not in TABLES:
        found.append(_refuse(where, f"its table is outside {_span(TABLES)}", "use our tables"))
    if foreign is not None:
        found.append(
            _refuse(where, f"a foreign rule has its priority: {foreign}", "move that rule")
        )
    return found


def _route(route: Route, addresses: set[tuple[str, str]], foreign: str | None) -> list[Refusal]:
    where = f"route {route.key}"
    found = []
    if route.table not in TABLES:
        found.append(_refuse(where, f"its table is outside {_span(TABLES)}", "use our tables"))
    if (route.interface, route.source) not in addresses:
        found.append(
            _refuse(
                where,
                f"its source {route.source} is no address of {route.interface} in this state",
                "give that bridge the address",
            )
        )
    if route.gateway is not None and not _is_address(route.gateway):
        found.append(_refuse(where, f"its gateway {route.gateway} is not IPv4", "IPv4 only"))
    if foreign is not None:
        found.append(
            _refuse(where, f"a foreign route is in its place: {foreign}", "move that route")
        )
    return found


def _is_address(text: str) -> bool:
    try:
        IPv4Interface(text)
    except ValueError:
        return False
    return True


def _span(numbers: range) -> str:
    return f"{numbers.start}..{numbers.stop - 1}"


def _refuse(where: str, what: str, remedy: str) -> Refusal:
    return Refusal(what=what, where=where, remedy=remedy)
