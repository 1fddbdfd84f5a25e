"""One spelling per value, so that what was asked for and what is read back compare equal."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import TypeVar

from placewire.agent.contract.entries import Classifier, Flow, Route, Rule
from placewire.agent.contract.state import Collections

State = TypeVar("State", bound=Collections)


def prefix(text: str) -> str:
    """`a.b.c.d` and `a.b.c.d/32` become `a.b.c.d/32`; `default` becomes `0.0.0.0/0`.

    Raises ValueError where it is not IPv4.
    """
    return str(IPv4Network("0.0.0.0/0" if text == "default" else text, strict=True))


def host_or_prefix(text: str) -> str:
    """As OpenFlow and u32 matches are written: a host without its /32."""
    return prefix(text).removesuffix("/32")


def canonical(state: State) -> State:
    """Raises ValueError where an address is not IPv4."""
    return state.model_copy(
        update={
            "rules": tuple(_rule(rule) for rule in state.rules),
            "routes": tuple(_route(route) for route in state.routes),
            "flows": tuple(_flow(flow) for flow in state.flows),
            "classifiers": tuple(_classifier(item) for item in state.classifiers),
        }
    )


def _rule(rule: Rule) -> Rule:
    return rule.model_copy(update={"source": prefix(rule.source)})


def _route(route: Route) -> Route:
    return route.model_copy(update={"destination": prefix(route.destination)})


def _flow(flow: Flow) -> Flow:
    if flow.destination is None:
        return flow
    return flow.model_copy(update={"destination": host_or_prefix(flow.destination)})


def _classifier(classifier: Classifier) -> Classifier:
    if classifier.destination is None:
        return classifier
    return classifier.model_copy(update={"destination": host_or_prefix(classifier.destination)})
