"""Refusals about policy routing rules and routes."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface

from placewire.agent.contract.entries import RULE_PRIORITIES, TABLES, Route, Rule
from placewire.agent.contract.state import (
    Collections,
    DesiredState,
    ObservedState,
    Refusal,
    refuse,
)
from placewire.agent.reconcile.foreign_kinds import MOST_NAMED, OTHER_RULES


def routing_refusals(wanted: DesiredState, observed: ObservedState) -> Iterator[Refusal]:
    """wanted: with canonical prefixes."""
    foreign = {(f.collection, f.key): f.text for f in observed.foreign}
    addresses = {
        (a.interface, a.address.split("/")[0]) for a in wanted.addresses if _is_address(a.address)
    }
    sources = {f"{host}/32" for _, host in addresses}
    for rule in wanted.rules:
        yield from _rule(rule, sources, foreign.get(("rules", str(rule.priority))))
    for route in wanted.routes:
        yield from _route(route, addresses, foreign.get(("routes", route.key)))
    yield from _tables_of_others(wanted, observed)


def _tables_of_others(wanted: DesiredState, observed: ObservedState) -> Iterator[Refusal]:
    """Refuses tables that others use: their packets would take our routes, and ours theirs. What
    comes into a table that is ours already is its owner's risk."""
    for table in sorted(_tables(wanted) - _tables(observed)):
        found = [
            entry
            for entry in observed.foreign
            if entry.collection in ("routes", OTHER_RULES)
            and entry.key.startswith(f"table {table} ")
        ]
        for entry in found[:MOST_NAMED]:
            yield refuse(
                f"table {table}",
                f"somebody else uses it: {entry.text}",
                f"move that to another table ({entry.remedy})",
            )


def _tables(state: Collections) -> set[int]:
    routes, rules = state.routes, state.rules
    return {route.table for route in routes} | {rule.table for rule in rules}


def _rule(rule: Rule, sources: set[str], foreign: str | None) -> Iterator[Refusal]:
    where = f"rule {rule.key}"
    if rule.priority not in RULE_PRIORITIES:
        span = _span(RULE_PRIORITIES)
        yield refuse(where, f"its priority is outside {span}", f"use a priority in {span}")
    if rule.table not in TABLES:
        yield _table_refusal(where)
    # A rule for more would lead others' packets into our tables, and with them the way to the
    # controller.
    if rule.source not in sources:
        yield refuse(
            where,
            f"its source {rule.source} is no single address of this state",
            "give the rule the address of one of the state's bridges",
        )
    if foreign is not None:
        yield refuse(where, f"a foreign rule has its priority: {foreign}", "move that rule")


def _route(route: Route, addresses: set[tuple[str, str]], foreign: str | None) -> Iterator[Refusal]:
    where = f"route {route.key}"
    if route.table not in TABLES:
        yield _table_refusal(where)
    if (route.interface, route.source) not in addresses:
        yield refuse(
            where,
            f"its source {route.source} is no address of {route.interface} in this state",
            "give that bridge the address",
        )
    if route.gateway is not None and not _is_address(route.gateway):
        yield refuse(where, f"its gateway {route.gateway} is not IPv4", "use an IPv4 gateway")
    if foreign is not None:
        yield refuse(where, f"a foreign route is in its place: {foreign}", "move that route")


def _table_refusal(where: str) -> Refusal:
    span = _span(TABLES)
    return refuse(where, f"its table is outside {span}", f"use a table in {span}")


def _is_address(text: str) -> bool:
    try:
        IPv4Interface(text)
    except ValueError:
        return False
    return True


def _span(numbers: range) -> str:
    return f"{numbers.start}..{numbers.stop - 1}"
