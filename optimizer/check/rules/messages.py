"""Rules on messages: exactly those that are needed, cut over rails as the transport does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placewire.optimizer.check.recompute.facts import Facts, servers_of
from placewire.optimizer.check.recompute.sharings import rules_of
from placewire.optimizer.check.rules.violation import RELATIVE_TOLERANCE, Violation
from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES
from placewire.optimizer.placement import Message, Placement

# By how much two computations of the same rate may differ.
_ROUNDING = 1e-12


def colocation_violations(facts: Facts) -> Iterator[Violation]:
    home: dict[int, str] = {}
    keys = facts.graph.colocation.tolist()
    placed = facts.device_of[: len(keys)]  # bundles, which come last, are free
    for name, key, device in zip(facts.graph.ids, keys, placed, strict=True):
        if key >= 0 and home.setdefault(key, device) != device:
            yield Violation(
                f"is on {device}, others of its co-location group on {home[key]}",
                f"operators.{name}",
            )


def message_violations(facts: Facts) -> Iterator[Violation]:
    placement, lists = facts.placement, facts.lists
    needed = facts.needed()
    for e, device in sorted(needed - set(facts.message)):
        name = lists.ids[lists.maker[e]]
        yield Violation(f"an output of {name!r} is needed there and never sent", device)
    if len(placement.messages) != len(facts.message):
        yield Violation("a tensor is sent twice to one device", "messages")
    rates_of = _rates_of_pairs(facts)
    for (e, device), message in facts.message.items():
        where = f"message of {message.producer!r} to {device}"
        if (e, device) not in needed:
            yield Violation("nobody there needs it", where)
        if message.source != facts.device_of[lists.maker[e]]:
            yield Violation(f"its producer does not run on {message.source}", where)
        if message.bytes != lists.size[e]:
            yield Violation(f"says {message.bytes} bytes, the tensor has {lists.size[e]}", where)
        for what in _share_mistakes(facts, message, rates_of):
            yield Violation(what, where)


def _rates_of_pairs(facts: Facts) -> Mapping[tuple[str, str], Mapping[str, float]]:
    """The rates in force on the rails on which each pair of servers may send."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    in_force = rules_of(facts.placement).undisturbed(facts.placement)
    for (source, target, rail), rate in in_force.items():
        if rate > 0:
            found.setdefault((source, target), {})[rail] = rate
    return found


def _share_mistakes(
    facts: Facts, message: Message, rates_of: Mapping[tuple[str, str], Mapping[str, float]]
) -> Iterator[str]:
    ends = servers_of(message)
    if not facts.on_nics(message):
        if message.rails:
            path = "stays inside one server" if ends[0] == ends[1] else "has a link of its own"
            yield f"{path} and names rails"
        return
    if not abs(sum(message.rails.values()) - 1.0) <= RELATIVE_TOLERANCE:
        yield f"its shares sum to {sum(message.rails.values())}, not to 1"
    rates = rates_of.get(ends, {})
    for rail, share in message.rails.items():
        if share < 0 or any((end, rail) not in facts.nics for end in ends):
            yield f"share {share} on rail {rail!r}, which both servers must have"
        elif share != 0 and rail not in rates:
            yield f"uses rail {rail!r}, on which its pair has no rate"
    if rates:
        yield from _cut_mistakes(facts.placement, message, rates)


def _cut_mistakes(
    placement: Placement, message: Message, rates: Mapping[str, float]
) -> Iterator[str]:
    """Checks that the message is cut as the transport does it at these rates of its pair's rails.

    The model `thesis` has one rate for each pair: there nothing is small, and NCCL is as gloo.
    """
    contended = placement.model != "thesis"
    if contended and message.bytes < CUT_THRESHOLD_BYTES:
        rails = _fastest(placement, rates)
        allowed = [{rail: 1.0} for rail in rails]
        how = f"so few bytes travel on the fastest of its rails alone, {rails[0]!r}"
    elif contended and placement.backend == "nccl":
        allowed = [dict.fromkeys(rates, 1 / len(rates))]
        how = f"nccl cuts it equally over {len(rates)} of its rails"
    else:
        allowed = [{rail: rate / sum(rates.values()) for rail, rate in rates.items()}]
        how = f"it is cut in proportion to its pair's rates, {allowed[0]}"
    if not any(_are_equal(message.rails, shares) for shares in allowed):
        yield f"shares {dict(message.rails)}, {how}"


def _fastest(placement: Placement, rates: Mapping[str, float]) -> list[str]:
    """The fastest rail, the first in the cluster's order of those with the same rate; and those
    that are slower by so little that it may be rounding."""
    first: dict[float, str] = {}
    for rail in placement.cluster.rails:
        first.setdefault(rates.get(rail, 0.0), rail)
    most = max(first)
    return [first[rate] for rate in sorted(first, reverse=True) if rate >= most * (1 - _ROUNDING)]


def _are_equal(found: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    rails = {*found, *wanted}
    return all(
        abs(found.get(rail, 0.0) - wanted.get(rail, 0.0)) <= RELATIVE_TOLERANCE for rail in rails
    )
