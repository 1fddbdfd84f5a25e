"""Finds others' rules of routing that name a NIC, and do nothing while it is taken over. Pure.

The kernel compares the interface that a packet comes in by, or that a program has bound itself to:
that is the bridge then.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise

from placewire.agent.contract.state import ForeignEntry, NicFacts, ObservedState
from placewire.agent.reconcile.foreign_kinds import INTERFACE_RULES

_WORDS = ("iif", "oif")
_PRIORITY = re.compile(r" priority \d+")


def rules_naming(nic: NicFacts, bridge: str, observed: ObservedState) -> list[ForeignEntry]:
    """Those beside which there is none that says the same of the bridge, with whatever priority. A
    rule whose conditions are not all known is the same as no other."""
    rules = [entry for entry in observed.foreign if entry.collection == INTERFACE_RULES]
    there = {_PRIORITY.sub("", rule.remedy) for rule in rules if rule.remedy}
    names = {nic.name, *nic.other_names}
    return [
        rule
        for rule in rules
        if names & _interfaces_of(rule.text)
        and _PRIORITY.sub("", over_bridge(rule, nic, bridge)) not in there
    ]


def over_bridge(rule: ForeignEntry, nic: NicFacts, bridge: str) -> str:
    """The rule's remedy, with the bridge in the place of the NIC."""
    return _with_names(rule.remedy, {nic.name, *nic.other_names}, bridge)


def command_for_bridge(rule: ForeignEntry, nic: NicFacts, bridge: str) -> str:
    """The command that adds the same rule for the bridge; "" where not all of the rule is known."""
    return over_bridge(rule, nic, bridge).replace(" rule del ", " rule add ", 1)


def _interfaces_of(command: str) -> set[str]:
    return {name for word, name in pairwise(command.split()) if word in _WORDS}


def _with_names(command: str, names: Collection[str], name: str) -> str:
    words = command.split()
    return " ".join(
        name if before in _WORDS and word in names else word
        for before, word in zip(["", *words], words, strict=False)
    )
