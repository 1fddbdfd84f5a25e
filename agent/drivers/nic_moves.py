"""Moves a NIC's own addresses and routes to its bridge and back."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.agent.drivers.announce import announce
from placewire.agent.drivers.as_effect_error import as_effect_error
from placewire.agent.drivers.command import run
from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.drivers.on_bridges import require_nothing
from placewire.agent.drivers.on_nics import what_stands_on
from placewire.agent.drivers.routes import read_routes
from placewire.agent.drivers.traffic_control import read_on_left
from placewire.agent.reconcile.command_words import identity_of_address
from placewire.agent.reconcile.diff import over_bridge
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.foreign import goes_with_move
from placewire.agent.reconcile.ledger import came_since
from placewire.agent.reconcile.route_identity import identities, identity
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
    for action in _to_bridge(step) if step.direction == "to bridge" else _back(step):
        try:
            run(action)
        except EffectError as error:
            failures.append(str(error))
    if step.direction == "back":
        failures += _remove_left_queues(step.held.nic)
        if step.held.was_up:
            announce(step.held.nic, [a.split()[0].split("/")[0] for a in step.held.addresses])
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
    """The commands; the bridge has the addresses already. Raises EffectError where something of
    others that has come onto the NIC would go with them. Routes are deleted by name, because a
    gateway route stays when its address goes. They are appended (also when they come back): another
    program may have made a route in the place of one meanwhile, and `add` would fail for ever."""
    nic, held = step.held.nic, step.held
    if held.addresses and (facts := InterfaceView().nic(nic)) is not None:
        require_nothing(goes_with_move(held, facts))
    there = read_routes()
    moving, known = identities(held.routes), identities(there)
    return [
        *[["ip", "route", "del", *line.split()] for line in there if identity(line) in moving],
        *[["ip", "address", "del", *identity_of_address(a), "dev", nic] for a in held.addresses],
        *[
            ["ip", "route", "append", *moved.split()]
            for route in held.routes
            if identity(moved := over_bridge(route, nic, step.bridge)) not in known
        ],
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
    have = {identity_of_address(a) for a in view.address_commands(nic)}
    up = held.was_up or bool(came_since(held, what_stands_on(view, nic)))
    there = identities(read_routes())
    missing = [a for a in held.addresses if identity_of_address(a) not in have]
    return [
        ["ip", "link", "set", nic, "up" if up else "down"],
        *([] if held.was_promiscuous else [["ip", "link", "set", nic, "promisc", "off"]]),
        *[["ip", "address", "add", *address.split(), "dev", nic] for address in missing],
        *[["ip", "route", "append", *r.split()] for r in held.routes if identity(r) not in there],
    ]
