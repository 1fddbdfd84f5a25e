"""Computes start, finish and arrival times again, under the placement's model and sharing."""

from __future__ import annotations

from placewire.optimizer.check.recompute import orderly
from placewire.optimizer.check.recompute.facts import Facts, Times
from placewire.optimizer.check.recompute.fluid import fluid_times
from placewire.optimizer.check.recompute.sharings import rules_of


def recompute_times(facts: Facts) -> Times | None:
    """None where the devices' orders wait for each other for ever."""
    placement = facts.placement
    if placement.model == "thesis":
        return orderly.orderly_times(facts, orderly.undisturbed_travel(facts))
    if placement.model == "msr":
        return orderly.orderly_times(facts, orderly.host_memory_travel(facts))
    if (shares := rules_of(placement).shares) is not None:
        return fluid_times(facts, shares(placement))
    return orderly.orderly_times(facts, orderly.queued_travel(facts))
