"""Finds others' rules of routing that name a NIC, and do nothing while it is taken over. Pure.

The kernel compares the interface that a packet comes in by, or that a program has bound itself to:
that is the bridge then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from placewire.agent.contract.state import ForeignEntry, NicFacts, ObservedState
from placewire.agent.reconcile.foreign_kinds import INTERFACE_RULES

_WORDS = ("iif", "oif")
_PRIORITY = re.compile(r" priority \d+")


def bridges_over(bridges: Mapping[str, str], observed: ObservedState) -> dict[str, str]:
    """The bridge that is or will be over each NIC, by every name of the NIC. bridges: by its own
    name."""
    return {
        name: bridges[nic.name]
        for nic in observed.nics
        if nic.name in bridges
        for name in (nic.name, *nic.other_names)
    }


def rules_naming(
    nic: NicFacts, over: Mapping[str, str], observed: ObservedState
) -> list[ForeignEntry]:
    """Those beside which there is none that says the same of the bridges, with whatever priority. A
    rule whose conditions are not all known is the same as no other. over: see bridges_over; a rule
    may name two NICs."""
    rules = [entry for entry in observed.foreign if entry.collection == INTERFACE_RULES]
    there = {_PRIORITY.sub("", rule.remedy) for rule in rules if rule.remedy}
    names = {nic.name, *nic.other_names}
    return [
        rule
        for rule in rules
        if names & _interfaces_of(rule.text)
        and _PRIORITY.sub("", _over_bridges(rule.remedy, over)) not in there
    ]


def command_for_bridges(rule: ForeignEntry, over: Mapping[str, str]) -> str:
    """The command that adds the rule for the bridges; "" where not all of the rule is known."""
    return _over_bridges(rule.remedy, over).replace(" rule del ", " rule add ", 1)


def _interfaces_of(command: str) -> set[str]:
    return {name for word, name in pairwise(command.split()) if word in _WORDS}


def _over_bridges(command: str, over: Mapping[str, str]) -> str:
    """The command, with each bridge in the place of its NIC."""
    words = command.split()
    return " ".join(
        over.get(word, word) if before in _WORDS else word
        for before, word in zip(["", *words], words, strict=False)
    )
