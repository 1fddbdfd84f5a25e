"""Tells which steps need a NIC that cannot be had now, or the bridge that would be made over it.
Pure.

The other steps are taken all the same: a NIC that is unplugged, or that somebody has in a bridge of
their own, keeps nothing of other NICs from being put right.
"""

from __future__ import annotations

from collections.abc import Collection

from placewire.agent.contract.entries import (
    Address,
    Bridge,
    Classifier,
    Flow,
    Queue,
    Route,
    Shaper,
    Sysctl,
)
from placewire.agent.reconcile.steps import NicStep, Step


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
