"""Reads and changes our routing rules and routes.

Ours is what has all marks: protocol 80 and one of our tables, and a rule one of our priorities as
well. Another program may use any of these numbers elsewhere. Of its rules, those that name an
interface are read, too, also those of IPv6.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from socket import AF_INET, AF_INET6
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.contract.entries import (
    PROTOCOL,
    RULE_PRIORITIES,
    TABLES,
    Route,
    Rule,
)
from placewire.agent.contract.state import ForeignEntry
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.foreign_kinds import INTERFACE_RULES, OTHER_RULES
from placewire.agent.reconcile.steps import EntryStep

_SCOPE_LINK, _SCOPE_UNIVERSE = 253, 0
# Numbers of linux/fib_rules.h. _ACTIONS has the words of `ip rule` for rules that lead to no table.
_INVERTED, _TO_TABLE, _GOTO, _NO_PREFIX_LENGTH = 2, 1, 2, 0xFFFFFFFF
_RANGES = {"sport": "FRA_SPORT_RANGE", "dport": "FRA_DPORT_RANGE", "uidrange": "FRA_UID_RANGE"}
_ACTIONS = {3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
# What `_words` tells, and what is no condition. The kernel has others, and tells each of them only
# where it is set; some are newer than pyroute2, which calls them UNKNOWN.
_TOLD = {
    "FRA_DST", "FRA_SRC", "FRA_IIFNAME", "FRA_OIFNAME", "FRA_GOTO", "FRA_PRIORITY", "FRA_FWMARK",
    "FRA_FWMASK", "FRA_SUPPRESS_PREFIXLEN", "FRA_TABLE", "FRA_IP_PROTO", "FRA_PROTOCOL", "FRA_PAD",
    *_RANGES.values(),
}  # fmt: skip


def read_rules() -> tuple[list[Rule], list[ForeignEntry]]:
    ours: list[Rule] = []
    foreign: list[ForeignEntry] = []
    with IPRoute() as netlink:
        of_v4, of_v6 = list(netlink.get_rules(family=AF_INET)), _rules_of_v6(netlink)
        for message in of_v4:
            priority = message.get_attr("FRA_PRIORITY") or 0
            table = message.get_attr("FRA_TABLE") or message["table"]
            source = f"{message.get_attr('FRA_SRC') or '0.0.0.0'}/{message['src_len']}"
            marked = message.get_attr("FRA_PROTOCOL") == PROTOCOL
            if marked and priority in RULE_PRIORITIES and table in TABLES:
                ours.append(Rule(priority=priority, source=source, table=table))
                continue
            text = f"{priority}: from {source} lookup {table}"
            remedy = f"ip rule del priority {priority} from {source} table {table}"
            if priority in RULE_PRIORITIES:
                foreign.append(
                    ForeignEntry(collection="rules", key=str(priority), text=text, remedy=remedy)
                )
            if table in TABLES:
                key = f"table {table} {text}"
                foreign.append(
                    ForeignEntry(
                        collection=OTHER_RULES, key=key, text=f"rule {text}", remedy=remedy
                    )
                )
        foreign += [*_by_interface("ip rule", of_v4), *_by_interface("ip -6 rule", of_v6)]
    return sorted(ours, key=lambda rule: rule.key), foreign


def _rules_of_v6(netlink: Any) -> list[Any]:
    """None in a kernel without IPv6."""
    try:
        return list(netlink.get_rules(family=AF_INET6))
    except NetlinkError as error:
        if error.code != errno.EAFNOSUPPORT:
            raise
        return []


def _by_interface(command: str, messages: Sequence[Any]) -> Iterator[ForeignEntry]:
    """The rules that name an interface: none is ours."""
    for message in messages:
        if message.get_attr("FRA_IIFNAME") or message.get_attr("FRA_OIFNAME"):
            words, whole = _words(message), _is_told_whole(message)
            # A command without one of its conditions would make or remove another rule.
            yield ForeignEntry(
                collection=INTERFACE_RULES,
                key=f"{command} {words}",
                text=words if whole else f"{words} ...",
                remedy=f"{command} del {words}" if whole else "",
            )


def _is_told_whole(message: Any) -> bool:
    """Whether `_words` leaves nothing of the rule out."""
    return message["action"] in (_TO_TABLE, _GOTO, *_ACTIONS) and all(
        name in _TOLD for name, _ in message["attrs"]
    )


def _words(message: Any) -> str:
    """The rule as `ip rule del` and `ip rule add` accept it, as far as it is told."""
    get = message.get_attr
    words = ["priority", get("FRA_PRIORITY") or 0]
    words += ["not"] if message["flags"] & _INVERTED else []
    words += ["from", f"{get('FRA_SRC')}/{message['src_len']}" if get("FRA_SRC") else "all"]
    words += ["to", f"{get('FRA_DST')}/{message['dst_len']}"] if get("FRA_DST") else []
    words += ["tos", f"{message['tos']:#x}"] if message["tos"] else []
    if get("FRA_FWMARK") or get("FRA_FWMASK"):  # The mark 0 has a mask alone.
        words += ["fwmark", f"{get('FRA_FWMARK') or 0:#x}/{get('FRA_FWMASK') or 0:#x}"]
    for word in ("iif", "oif"):
        words += [word, name] if (name := get(f"FRA_{word.upper()}NAME")) else []
    words += ["ipproto", get("FRA_IP_PROTO")] if get("FRA_IP_PROTO") else []
    for word, name in _RANGES.items():
        words += [word, get(name).replace(":", "-")] if get(name) else []
    if message["action"] == _TO_TABLE:
        words += ["table", get("FRA_TABLE") or message["table"]]
    elif message["action"] == _GOTO:
        words += ["goto", get("FRA_GOTO")]
    else:
        words.append(_ACTIONS.get(message["action"], f"type {message['action']}"))
    if get("FRA_SUPPRESS_PREFIXLEN") not in (None, _NO_PREFIX_LENGTH):
        words += ["suppress_prefixlength", get("FRA_SUPPRESS_PREFIXLEN")]
    return " ".join(map(str, words))


def read_routes(names: Mapping[int, str]) -> tuple[list[Route], list[ForeignEntry]]:
    """names: of interfaces, by index."""
    ours: list[Route] = []
    foreign: list[ForeignEntry] = []
    with IPRoute() as netlink:
        for message in netlink.get_routes(family=AF_INET):
            table = message.get_attr("RTA_TABLE") or message["table"]
            if table not in TABLES:
                continue
            route = Route(
                table=table,
                destination=f"{message.get_attr('RTA_DST') or '0.0.0.0'}/{message['dst_len']}",
                interface=names.get(message.get_attr("RTA_OIF"), ""),
                source=message.get_attr("RTA_PREFSRC") or "",
                gateway=message.get_attr("RTA_GATEWAY"),
            )
            if message["proto"] == PROTOCOL:
                ours.append(route)
            else:
                text = f"{route.destination} dev {route.interface} table {table}"
                foreign.append(
                    ForeignEntry(
                        collection="routes",
                        key=route.key,
                        text=text,
                        remedy=f"ip route del {route.destination} table {table}",
                    )
                )
    return sorted(ours, key=lambda route: route.key), foreign


def change_rules(steps: Sequence[EntryStep]) -> None:
    """To the kernel, a rule has no identity: a changed one is added, then the former is removed."""
    with IPRoute() as netlink:
        for step in steps:
            if isinstance(step.after, Rule):
                _rule(netlink, "add", step.after)
            if isinstance(step.before, Rule):
                _rule(netlink, "del", step.before)


def _rule(netlink: Any, verb: str, rule: Rule) -> None:
    source = IPv4Network(rule.source)
    netlink.rule(
        verb,
        family=AF_INET,
        src=str(source.network_address),
        src_len=source.prefixlen,
        table=rule.table,
        priority=rule.priority,
        protocol=PROTOCOL,
    )


def change_routes(steps: Sequence[EntryStep]) -> None:
    """The kernel refuses a new route where a foreign one has come into its place meanwhile. Told to
    replace one, it would not ask whose that is: a changed route is removed by its mark, and added.
    """
    with IPRoute() as netlink:
        for step in steps:
            if isinstance(step.before, Route):
                _remove_route(netlink, step.before, may_be_gone=step.after is not None)
            if isinstance(step.after, Route):
                _route(netlink, "add", step.after)


def _remove_route(netlink: Any, route: Route, *, may_be_gone: bool) -> None:
    """may_be_gone: it is no error where there is none."""
    try:
        _route(netlink, "del", route)
    except NetlinkError as error:
        if not (may_be_gone and error.code == errno.ESRCH):
            raise


def _route(netlink: Any, verb: str, route: Route) -> None:
    indexes = netlink.link_lookup(ifname=route.interface)
    if not indexes:
        if verb == "del":
            return  # The route went with its interface.
        raise EffectError(f"route {route.key}: there is no interface {route.interface}")
    arguments = {
        "family": AF_INET,
        "dst": route.destination,
        "oif": indexes[0],
        "table": route.table,
        "proto": PROTOCOL,
        "scope": _SCOPE_LINK if route.gateway is None else _SCOPE_UNIVERSE,
    }
    if route.source:
        arguments["prefsrc"] = route.source
    if route.gateway is not None:
        arguments["gateway"] = route.gateway
    netlink.route(verb, **arguments)
