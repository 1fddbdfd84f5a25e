"""Gives every value one spelling, so that a desired state and what is read back compare equal."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import TypeVar

from placewire.agent.contract.entries import Classifier, Flow
from placewire.agent.contract.state import Collections

State = TypeVar("State", bound=Collections)
Steering = TypeVar("Steering", Flow, Classifier)


def prefix(text: str) -> str:
    """`a.b.c.d` becomes `a.b.c.d/32`, and `default` `0.0.0.0/0`. Raises ValueError if not IPv4."""
    return str(IPv4Network("0.0.0.0/0" if text == "default" else text, strict=True))


def host_or_prefix(text: str) -> str:
    """The spelling of OpenFlow and u32 matches: a host has no /32."""
    return prefix(text).removesuffix("/32")


def canonical(state: State) -> State:
    """Raises ValueError where an address is not IPv4."""
    return state.model_copy(
        update={
            "rules": tuple(r.model_copy(update={"source": prefix(r.source)}) for r in state.rules),
            "routes": tuple(
                r.model_copy(update={"destination": prefix(r.destination)}) for r in state.routes
            ),
            "flows": tuple(map(_steering, state.flows)),
            "classifiers": tuple(map(_steering, state.classifiers)),
        }
    )


def _steering(entry: Steering) -> Steering:
    if entry.destination is None:
        return entry
    return entry.model_copy(update={"destination": host_or_prefix(entry.destination)})
