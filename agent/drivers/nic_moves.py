"""Moves a NIC's own addresses and routes to its bridge and back."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.agent.contract.state import TakenOver
from placewire.agent.drivers import sysctl
from placewire.agent.drivers.announce import announce
from placewire.agent.drivers.as_effect_error import as_effect_error
from placewire.agent.drivers.command import run
from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.drivers.on_bridges import require_nothing
from placewire.agent.drivers.on_nics import what_stands_on
from placewire.agent.drivers.routes import read_routes
from placewire.agent.drivers.traffic_control import read_on_left
from placewire.agent.reconcile.command_words import identity_of_address, named
from placewire.agent.reconcile.diff import over_bridge
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.goes_with import goes_with_move
from placewire.agent.reconcile.ledger import came_since
from placewire.agent.reconcile.route_identity import (
    identities,
    identity,
    is_of_v6,
    without_sources,
)
from placewire.agent.reconcile.steps import NicStep


def move_nics(steps: Sequence[NicStep]) -> None:
    """Moves all that can be moved, then raises EffectError with what could not."""
    failures = []
    for step in steps:
        try:
            with as_effect_error(f"moving what NIC {step.held.nic} holds", EffectError):
                failures += _move_nic(step)
        except EffectError as error:
            failures.append(str(error))
    if failures:
        raise EffectError("; ".join(failures))


def _move_nic(step: NicStep) -> list[str]:
    """Returns what failed. Raises EffectError where the NIC is gone."""
    failures = []
    if step.direction == "to bridge" and _takes_v6(step.held):
        sysctl.switch_ipv6_on(step.bridge)
    for action in _to_bridge(step) if step.direction == "to bridge" else _back(step):
        try:
            run(action)
        except EffectError as error:
            failures.append(str(error))
    if step.direction == "back":
        failures += _remove_left_queues(step.held.nic)
        if step.held.was_up:
            theirs = [a for a in step.held.addresses if not is_of_v6(a)]
            announce(step.held.nic, [a.split()[0].split("/")[0] for a in theirs])
    return failures


def _remove_left_queues(nic: str) -> list[str]:
    """Removes the HTB that ovs-vswitchd left on a NIC; returns why it cannot be removed."""
    view = InterfaceView()
    if not view.has_htb_of_switch(nic):
        return []
    if theirs := read_on_left(nic, view.disciplines(nic)):
        return [f"the queues of {nic} stay: {f.text} is not ours ({f.remedy})" for f in theirs]
    try:
        run(["tc", "qdisc", "del", "dev", nic, "root"])
    except EffectError as error:
        return [str(error)]
    return []


def _to_bridge(step: NicStep) -> list[list[str]]:
    """The commands; the bridge has the IPv4 addresses already. Raises EffectError where something
    of others that has come onto the NIC would go with them. Routes are deleted by name, because a
    gateway route stays when its address goes."""
    nic, held = step.held.nic, step.held
    view = InterfaceView()
    if held.addresses and (facts := view.nic(nic)) is not None:
        require_nothing(goes_with_move(held, facts))
    there = read_routes()
    moving = identities(held.routes)
    routes = [over_bridge(route, nic, step.bridge) for route in held.routes]
    on_nic, on_bridge = (_identified(view, name) for name in (nic, step.bridge))
    leaving = [a for a in held.addresses if not is_of_v6(a) or identity_of_address(a) in on_nic]
    coming = [a for a in held.addresses if is_of_v6(a) and identity_of_address(a) not in on_bridge]
    return [
        *[["ip", "route", "del", *line.split()] for line in there if identity(line) in moving],
        *[_give(_without_nodad(address), ["nodad"], step.bridge) for address in reversed(coming)],
        *[["ip", "address", "del", *identity_of_address(a), "dev", nic] for a in leaving],
        *(_telling_neighbours(view, nic, step.bridge) if coming else ()),
        *_give_routes(routes, there),
    ]


def _takes_v6(held: TakenOver) -> bool:
    """Whether it has an address or a route of IPv6, or a route whose gateway is."""
    routes = any(is_of_v6(route) or " via inet6 " in route for route in held.routes)
    return routes or any(map(is_of_v6, held.addresses))


def _identified(view: InterfaceView, interface: str) -> set[tuple[str, ...]]:
    return {identity_of_address(command) for command in view.address_commands(interface)}


def _give(address: str, flags: Sequence[str], interface: str) -> list[str]:
    return ["ip", "address", "replace", *address.split(), *flags, "dev", interface]


def _telling_neighbours(view: InterfaceView, nic: str, bridge: str) -> list[list[str]]:
    """The kernel tells neighbours of the bridge's IPv6 addresses (ndisc_notify) when its MAC
    address is set, to what it is already as well; not of an address that it gets with `nodad`. On
    the kernel datapath the MAC address is the NIC's own, and nothing is new to them."""
    if not {nic, bridge} <= {*view.names} or view.mac(nic) == view.mac(bridge):
        return []
    return [["ip", "link", "set", "dev", bridge, "address", view.mac(bridge)]]


def _without_nodad(address: str) -> str:
    return " ".join(word for word in address.split() if word != "nodad")


def _give_routes(routes: Sequence[str], there: Sequence[str]) -> list[list[str]]:
    """The commands that give those routes that are not there, and remove what is left of one whose
    source went. Another program may have made a route in the place of one meanwhile: of IPv4 it
    comes after that, because `add` would fail for ever. Of IPv6, `append` would make the other
    program's route one of two ways."""
    known = identities(there)
    missing = [route for route in routes if identity(route) not in known]
    left = without_sources(missing)
    return [
        *[["ip", "route", "del", *line.split()] for line in there if identity(line) in left],
        *[["ip", "route", "add" if is_of_v6(r) else "append", *r.split()] for r in missing],
    ]


def _back(step: NicStep) -> list[list[str]]:
    nic, held = step.held.nic, step.held
    view = InterfaceView()
    if nic not in view.names:
        raise EffectError(f"NIC {nic} is gone: its addresses {held.addresses} cannot come back")
    if held.mac not in ("", view.mac(nic)):  # It was exchanged since the server was read.
        raise EffectError(
            f"NIC {nic} is another one now, with MAC {view.mac(nic)}: it is not given what "
            f"{held.mac} held"
        )
    have = _identified(view, nic)
    complete = set(map(named, view.address_commands(nic)))
    up = held.was_up or bool(came_since(held, what_stands_on(view, nic)))
    there = read_routes()
    missing = [a for a in held.addresses if identity_of_address(a) not in have]
    promiscuous_by_us = held.made_promiscuous and not held.was_promiscuous
    # `ip` shows the newest first, and the kernel prefers it.
    missing_v6 = [a for a in reversed(held.addresses) if is_of_v6(a) and named(a) not in complete]
    return [
        ["ip", "link", "set", nic, "up" if up else "down"],
        *([["ip", "link", "set", nic, "promisc", "off"]] if promiscuous_by_us else []),
        *[["ip", "address", "add", *a.split(), "dev", nic] for a in missing if not is_of_v6(a)],
        *[command for address in missing_v6 for command in _give_back(address, nic)],
        *_give_routes(held.routes, there),
    ]


def _give_back(address: str, nic: str) -> list[list[str]]:
    """The kernel would look for the address elsewhere for a second, and take no route from it
    meanwhile. Told that it need not, it does not look again when it is told otherwise."""
    if "nodad" in address.split():
        return [_give(address, (), nic)]
    return [_give(address, ["nodad"], nic), _give(address, (), nic)]
