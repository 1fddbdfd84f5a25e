"""A plan that was changed since a decision: what the decision recorded counts."""

from __future__ import annotations

from typing import Any

import pytest

from placewire.agent.contract.state import DesiredState
from placewire.controller.compile.as_decided import plan_as_decided
from placewire.controller.compile.network import compile_network
from placewire.controller.compile.transfers import promises
from placewire.controller.errors import UsageError
from tests.controller.plans import capabilities, placement, plan, plan_document

THEN = plan()
ALLOCATION = placement(THEN, (("s1", "s3", "b", 20e6),))
STATES: dict[str, DesiredState] = compile_network(
    THEN, ALLOCATION, dict.fromkeys(("s1", "s2", "s3"), capabilities()),
    dict.fromkeys(("s1", "s2", "s3"), 1),
)  # fmt: skip


def changed(document: dict[str, Any]) -> Any:
    """The promises for the plan of this document."""
    return promises(plan_as_decided(plan(document), ALLOCATION, STATES), ALLOCATION)


def test_promises_are_those_of_the_decision_whatever_the_plan_says_now() -> None:
    document = plan_document(4, rate="20Mbit")
    servers = document["cluster"]["servers"]
    servers.reverse()
    for k, server in enumerate(servers):
        for rail, nic in enumerate(server["nics"]):
            nic |= {"address": f"10.8.{rail}.{k + 1}/24", "mtu": 9000}
    assert promises(THEN, ALLOCATION)
    assert changed(document) == promises(THEN, ALLOCATION)


@pytest.mark.parametrize("gone", ["server", "NIC", "rail", "NIC's name"])
def test_what_the_plan_no_longer_has_is_named(gone: str) -> None:
    document = plan_document()
    servers = document["cluster"]["servers"]
    what = "rail b of this server"
    for server in servers:
        if gone == "NIC":
            del server["nics"][1]
        elif gone == "rail":
            server["nics"][1]["rail"] = "c"
        elif gone == "NIC's name":
            server["nics"][1]["name"] = "other"
    if gone == "server":
        del servers[2]
        what = "this server"
    with pytest.raises(UsageError, match=f"rates were promised for {what}") as no:
        changed(document)
    assert no.value.where == ("server s3" if gone == "server" else "server s1")
    assert "`--no-measurement`" in no.value.remedy
