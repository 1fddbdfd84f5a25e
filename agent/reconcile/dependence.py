"""Tells which steps need a NIC that cannot be had now, or the bridge that would be made over it.
And of which NIC each step is. Pure.

The other steps are taken all the same: a NIC that is unplugged, or that somebody has in a bridge of
their own, keeps nothing of other NICs from being put right.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from placewire.agent.contract.entries import (
    BRIDGE_PREFIX,
    Address,
    Bridge,
    Classifier,
    Flow,
    Queue,
    Route,
    Shaper,
    Sysctl,
    UnusedRow,
    bridge_name,
)
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step


def needs(step: Step, nics: Collection[str], bridges: Collection[str]) -> bool:
    """Whether the step makes something of these NICs' or on these bridges."""
    if isinstance(step, NicStep):
        return step.direction == "to bridge" and step.bridge in bridges
    match step.after:
        case Bridge(nic=nic) | Shaper(nic=nic) | Queue(nic=nic) | Classifier(nic=nic):
            return nic in nics
        case Address(interface=name) | Route(interface=name) | Flow(bridge=name):
            return name in bridges
        case Sysctl() as sysctl:
            return sysctl.interface in nics or sysctl.interface in bridges
    return False


def by_nic(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """The steps of no NIC alone, such as rules, and those of each NIC and its bridge, in their
    order."""
    found: dict[str, list[Step]] = {"": []}
    for step in steps:
        found.setdefault(_bridge_of(step), []).append(step)
    return [tuple(some) for some in found.values() if some]


def needs_switch(step: Step) -> bool:
    """Whether Open vSwitch has to take the step in. The kernel alone does the others."""
    return isinstance(step, EntryStep) and isinstance(
        step.entry, (Bridge, Flow, Shaper, Queue, UnusedRow)
    )


def _bridge_of(step: Step) -> str:
    if isinstance(step, NicStep):
        return step.bridge
    match step.entry:
        case Bridge(name=name) | Flow(bridge=name) | Address(interface=name):
            return name
        case Route(interface=name):
            return name
        case Shaper(nic=nic) | Queue(nic=nic) | Classifier(nic=nic):
            return bridge_name(nic)
        case Sysctl() as sysctl:
            name = sysctl.interface
            return name if name.startswith(BRIDGE_PREFIX) else bridge_name(name)
    return ""
