"""Rules on messages: exactly those that are needed, cut over rails as the transport does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placewire.optimizer.check.recompute.facts import Facts, servers_of
from placewire.optimizer.check.recompute.network import PairKey, widest_rates
from placewire.optimizer.check.recompute.sharings import rules_of
from placewire.optimizer.check.rules.violation import RELATIVE_TOLERANCE, Violation
from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES
from placewire.optimizer.placement import Message


def colocation_violations(facts: Facts) -> Iterator[Violation]:
    home: dict[int, str] = {}
    keys = facts.graph.colocation.tolist()
    for name, key, device in zip(facts.graph.ids, keys, facts.device_of, strict=True):
        if key >= 0 and home.setdefault(key, device) != device:
            yield Violation(
                f"is on {device}, others of its co-location group on {home[key]}",
                f"operators.{name}",
            )


def message_violations(facts: Facts) -> Iterator[Violation]:
    graph, placement, lists = facts.graph, facts.placement, facts.lists
    needed = facts.needed()
    for e, device in sorted(needed - set(facts.message)):
        name = graph.ids[lists.maker[e]]
        yield Violation(f"an output of {name!r} is needed there and never sent", device)
    if len(placement.messages) != len(facts.message):
        yield Violation("a tensor is sent twice to one device", "messages")
    rails = _rails_of_pairs(facts)
    for (e, device), message in facts.message.items():
        where = f"message of {message.producer!r} to {device}"
        if (e, device) not in needed:
            yield Violation("nobody there needs it", where)
        if message.source != facts.device_of[lists.maker[e]]:
            yield Violation(f"its producer does not run on {message.source}", where)
        if message.bytes != lists.size[e]:
            yield Violation(f"says {message.bytes} bytes, the tensor has {lists.size[e]}", where)
        for what in _share_mistakes(facts, message, rails):
            yield Violation(what, where)


def _rails_of_pairs(facts: Facts) -> Mapping[tuple[str, str], set[str]]:
    """The rails on which each pair of servers may send: by its rates, else by its two NICs."""
    rates: Mapping[PairKey, float] = facts.rate
    if not rules_of(facts.placement).has_pair_rates:
        rates = widest_rates(facts.placement)
    found: dict[tuple[str, str], set[str]] = {}
    for (source, target, rail), rate in rates.items():
        if rate > 0:
            found.setdefault((source, target), set()).add(rail)
    return found


def _share_mistakes(
    facts: Facts, message: Message, rails: Mapping[tuple[str, str], set[str]]
) -> Iterator[str]:
    ends = servers_of(message)
    if not facts.on_nics(message):
        if message.rails:
            path = "stays inside one server" if ends[0] == ends[1] else "has a link of its own"
            yield f"{path} and names rails"
        return
    if not abs(sum(message.rails.values()) - 1.0) <= RELATIVE_TOLERANCE:
        yield f"its shares sum to {sum(message.rails.values())}, not to 1"
    usable = rails.get(ends, set())
    used = {rail: share for rail, share in message.rails.items() if share != 0}
    for rail, share in message.rails.items():
        if share < 0 or any((end, rail) not in facts.nics for end in ends):
            yield f"share {share} on rail {rail!r}, which both servers must have"
        elif rail in used and rail not in usable:
            yield f"uses rail {rail!r}, on which its pair has no rate"
    if facts.placement.backend == "nccl" and facts.placement.model != "thesis":
        wanted = len(usable) if message.bytes >= CUT_THRESHOLD_BYTES else 1
        equal = all(abs(x - 1 / wanted) <= RELATIVE_TOLERANCE for x in used.values())
        if len(used) != wanted or not equal:
            yield f"shares {dict(message.rails)}, nccl cuts it equally over {wanted} of its rails"
