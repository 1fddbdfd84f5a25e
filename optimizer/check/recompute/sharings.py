"""The rules of each sharing as the check knows them, independent of those in optimizer/network.

So a mistake in either of the two shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from placewire.optimizer.allocation import Allocation
from placewire.optimizer.check.recompute import fairness, network
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement


@dataclass(frozen=True)
class SharingRules:
    """has_pair_rates: a placement records rates of pairs. undisturbed: the rate of each pair where
    transfers never meet. shares: how the transfers under way share the NICs; None where each pair
    has its recorded rate. are_even: the recorded rates are an even split. orders_messages: the send
    order decides which message is sent first. limits_every_receiver: recorded rates stay within
    what a receiver's NIC carries under the model `thesis` too.
    """

    has_pair_rates: bool
    undisturbed: Callable[[Allocation], dict[network.PairKey, float]]
    shares: Callable[[Placement], fairness.Shares] | None = None
    are_even: bool = False
    orders_messages: bool = False
    limits_every_receiver: bool = False


RULES: Mapping[SharingName, SharingRules] = {
    "strict": SharingRules(True, network.recorded_rates),
    "even": SharingRules(True, network.recorded_rates, are_even=True),
    "guarantee": SharingRules(
        True, network.ceilings, fairness.MinimumsWithLending, limits_every_receiver=True
    ),
    "job": SharingRules(
        False, network.widest_rates, fairness.MostUrgentFirst, orders_messages=True
    ),
    "unshaped": SharingRules(False, network.widest_rates, fairness.MaxMin),
}


def rules_of(allocation: Allocation) -> SharingRules:
    return RULES[allocation.sharing]
