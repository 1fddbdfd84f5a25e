"""Rules on rates of pairs of servers: within what the job may use of each NIC and each uplink."""

from __future__ import annotations

from collections.abc import Iterator

from placewire.optimizer.check.recompute.network import (
    NicKey,
    Uplinks,
    even_rates,
    recorded_rates,
    usable_rates,
)
from placewire.optimizer.check.recompute.sharings import rules_of
from placewire.optimizer.check.rules.violation import RELATIVE_TOLERANCE, Violation, within
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement


def rate_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    if not rules_of(placement).has_pair_rates:
        if placement.rates_bits_per_second:
            yield Violation(
                f"{placement.sharing} sharing has no rates per pair", "rates_bits_per_second"
            )
        return
    usable = usable_rates(placement)
    yield from _row_violations(placement, usable)
    yield from _sum_violations(placement, usable)
    yield from _uplink_violations(placement)
    if rules_of(placement).are_even:
        yield from _even_violations(placement)


def _row_violations(placement: Placement, usable: dict[NicKey, float]) -> Iterator[Violation]:
    seen: set[tuple[str, str, str]] = set()
    for source, target, rail, rate in placement.rates_bits_per_second:
        where = f"rates_bits_per_second.{source}.{target}.{rail}"
        if (source, target, rail) in seen or source == target:
            yield Violation("is given twice, or from a server to itself", where)
        seen.add((source, target, rail))
        if (source, rail) not in usable or (target, rail) not in usable:
            yield Violation("one of the two servers has no NIC on this rail", where)
            continue
        most = min(usable[source, rail], usable[target, rail])
        if not (rate >= 0 and within(rate, most)):
            yield Violation(f"{rate:.0f} bit/s is outside 0..{most:.0f}", where)


def _sum_violations(placement: Placement, usable: dict[NicKey, float]) -> Iterator[Violation]:
    """Checks what each NIC transmits, and what it receives, which (3.7) of the thesis lacks: under
    its model a sharing limits receivers only where it always does."""
    receiving = placement.model != "thesis" or rules_of(placement).limits_every_receiver
    sums: dict[tuple[str, str, str], float] = {}
    for source, target, rail, rate in placement.rates_bits_per_second:
        for key in (("transmits", source, rail), ("receives", target, rail)):
            sums[key] = sums.get(key, 0.0) + rate
    for (direction, server, rail), total in sums.items():
        if direction == "receives" and not receiving:
            continue
        most = usable.get((server, rail), 0.0)
        if not within(total, most):
            yield Violation(
                f"{direction} {total:.0f} bit/s in all; {most:.0f} bit/s of its NIC can be used",
                f"rates_bits_per_second.{server}.{rail}",
            )


def _uplink_violations(placement: Placement) -> Iterator[Violation]:
    """Checks what leaves and what enters each pod, under every model: (3.7) of the thesis is about
    NICs, and a plan states uplinks beside them."""
    uplinks = Uplinks(placement)
    for (crossing, rail), total in uplinks.sums(recorded_rates(placement).items()).items():
        most = uplinks.most(crossing, rail)
        if not within(total, most):
            direction, pod = crossing
            yield Violation(
                f"{total:.0f} bit/s in all {direction} pod {pod}; its uplink carries {most:.0f} "
                "bit/s each way",
                f"rates_bits_per_second.{pod}.{rail}",
            )


def _even_violations(placement: Placement) -> Iterator[Violation]:
    even = even_rates(placement)
    # Servers that share no rail exchange messages over links, which have rates of their own.
    joined = {(s, t) for s, t, _ in even}
    if not placement.rates_bits_per_second and placement.server_pairs & joined:
        yield Violation("even sharing needs its rates", "rates_bits_per_second")
    for source, target, rail, rate in placement.rates_bits_per_second:
        right = even.get((source, target, rail), 0.0)
        if not abs(rate - right) <= RELATIVE_TOLERANCE * right:
            yield Violation(
                f"{rate:.0f} bit/s, an even split gives {right:.0f}",
                f"rates_bits_per_second.{source}.{target}.{rail}",
            )
