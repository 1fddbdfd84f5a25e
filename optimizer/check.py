"""Is a placement what it says? Independent of the engines and of the simulator.

A proof cannot be read off a file: the bound that it states is compared with what `bounds` proves
for the graph and the cluster, and that with two bounds that are added up again here.
Used on every placement before it leaves the optimizer, and by `optimizer check` on anybody's file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from optimizer.bounds import lower_bound
from optimizer.graph import OperatorGraph
from optimizer.placement import Placement
from optimizer.problem import InfeasibleError, Problem
from optimizer.recompute import recompute_memory, recompute_times
from optimizer.recompute_claims import least_bound, recompute_best_single
from optimizer.recompute_facts import Facts

RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Violation:
    """what: the rule that is broken, with the numbers; where: the operator, device, pair or key."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def check(graph: OperatorGraph, placement: Placement) -> tuple[Violation, ...]:
    """Every violation that can be established; () where the placement holds.

    Times and memory are recomputed only where the structure is sound: names that do not exist have
    no time.
    """
    structural: tuple[Callable[[OperatorGraph, Placement], Iterator[Violation]], ...] = (
        _graph_violations,
        _operator_violations,
        _order_violations,
        _rate_violations,
        _name_violations,
    )
    found = [violation for rule in structural for violation in rule(graph, placement)]
    if found:
        return tuple(found)
    facts = Facts(graph, placement)
    found = [*_colocation_violations(graph, placement), *_message_violations(facts)]
    if found:
        return tuple(found)
    return (*_time_and_memory_violations(facts), *_claim_violations(facts))


def _graph_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    if placement.structure_hash != graph.structure_hash:
        yield Violation(
            f"the placement is for graph {placement.structure_hash[:12]}…, this one is "
            f"{graph.structure_hash[:12]}…",
            "structure_hash",
        )
    elif placement.profile_digest != graph.profile_digest:
        yield Violation("the graph's times or memory have changed since", "profile_digest")


def _operator_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    cluster = placement.cluster
    types = dict(zip(cluster.device_names, (d.type for d in cluster.devices), strict=True))
    for name in graph.ids:
        device = placement.operators.get(name)
        if device is None:
            yield Violation("is placed nowhere", f"operators.{name}")
        elif device not in types:
            yield Violation(f"is placed on {device!r}, which does not exist", f"operators.{name}")
        elif types[device] not in graph.device_types:
            yield Violation(f"has no time on device type {types[device]!r}", f"operators.{name}")
        else:
            column = graph.device_types.index(types[device])
            if graph.seconds[graph.index_of[name], column] == float("inf"):
                yield Violation(f"cannot run on device type {types[device]!r}", f"operators.{name}")
    for name in set(placement.operators) - set(graph.ids):
        yield Violation("is no operator of the graph", f"operators.{name}")


def _order_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    for device, names in placement.order.items():
        if device not in placement.cluster.device_names:
            yield Violation("is no device of the cluster", f"order.{device}")
        placed = Counter(n for n, d in placement.operators.items() if d == device)
        listed = Counter(names)
        for name in listed - placed:
            yield Violation("is listed twice, or not placed here", f"order.{device}.{name}")
        for name in placed - listed:
            yield Violation("is placed here and missing in the order", f"order.{device}.{name}")
    for device in set(placement.operators.values()) - set(placement.order):
        yield Violation("has operators and no order", f"order.{device}")


def _rate_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    """Per NIC what it transmits, and what it receives: (3.7) of the thesis lacks the latter."""
    nics = {
        (server.name, nic.rail): nic.rate_bits_per_second
        for server in placement.cluster.servers
        for nic in server.nics
    }
    if placement.sharing == "unshaped" and placement.rates_bits_per_second:
        yield Violation("unshaped sharing has no rates per pair", "rates_bits_per_second")
    sums: dict[tuple[str, str, str], float] = {}
    seen: set[tuple[str, str, str]] = set()
    for source, target, rail, rate in placement.rates_bits_per_second:
        where = f"rates_bits_per_second.{source}.{target}.{rail}"
        ends = [nics.get((source, rail)), nics.get((target, rail))]
        if (source, target, rail) in seen or source == target:
            yield Violation("is given twice, or from a server to itself", where)
        seen.add((source, target, rail))
        if ends[0] is None or ends[1] is None:
            yield Violation("one of the two servers has no NIC on this rail", where)
            continue
        if not 0 <= rate <= min(ends[0], ends[1]) * (1 + RELATIVE_TOLERANCE):
            yield Violation(f"{rate:.0f} bit/s is outside 0..{min(ends[0], ends[1]):.0f}", where)
        for key in (("transmits", source, rail), ("receives", target, rail)):
            sums[key] = sums.get(key, 0.0) + rate
    for (direction, server, rail), total in sums.items():
        if direction == "receives" and placement.model == "thesis":
            continue
        if total > nics[server, rail] * (1 + RELATIVE_TOLERANCE):
            yield Violation(
                f"{direction} {total:.0f} bit/s in all, its NIC does {nics[server, rail]:.0f}",
                f"rates_bits_per_second.{server}.{rail}",
            )
    if placement.sharing == "even" and not sums and placement.server_pairs:
        yield Violation("even sharing needs its rates", "rates_bits_per_second")


def _name_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    devices = set(placement.cluster.device_names)
    for k, message in enumerate(placement.messages):
        where = f"messages.{k}"
        index = graph.index_of.get(message.producer)
        if index is None:
            yield Violation(f"producer {message.producer!r} is no operator", where)
        elif not 0 <= message.output < len(graph.output_tensors(index)):
            yield Violation(f"{message.producer!r} has no output {message.output}", where)
        for device in (message.source, message.destination):
            if device not in devices:
                yield Violation(f"{device!r} is no device of the cluster", where)


def _colocation_violations(graph: OperatorGraph, placement: Placement) -> Iterator[Violation]:
    home: dict[int, str] = {}
    for name, key in zip(graph.ids, graph.colocation.tolist(), strict=True):
        device = placement.operators[name]
        if key >= 0 and home.setdefault(key, device) != device:
            yield Violation(
                f"is on {device}, others of its co-location group on {home[key]}",
                f"operators.{name}",
            )


def _message_violations(facts: Facts) -> Iterator[Violation]:
    graph, placement = facts.graph, facts.placement
    needed = facts.needed()
    for e, device in sorted(needed - set(facts.message)):
        name = graph.ids[facts.maker[e]]
        yield Violation(f"an output of {name!r} is needed there and never sent", device)
    if len(placement.messages) != len(facts.message):
        yield Violation("a tensor is sent twice to one device", "messages")
    for (e, device), message in facts.message.items():
        where = f"message of {message.producer!r} to {device}"
        if (e, device) not in needed:
            yield Violation("nobody there needs it", where)
        if message.source != facts.device_of[facts.maker[e]]:
            yield Violation(f"its producer does not run on {message.source}", where)
        if message.bytes != facts.size[e]:
            yield Violation(f"says {message.bytes} bytes, the tensor has {facts.size[e]}", where)
        yield from _share_violations(facts, message.rails, message.source, device, where)


def _share_violations(
    facts: Facts, rails: Mapping[str, float], source: str, destination: str, where: str
) -> Iterator[Violation]:
    ends = (facts.server_of[source], facts.server_of[destination])
    if ends[0] == ends[1]:
        if rails:
            yield Violation("stays inside one server and names rails", where)
        return
    if abs(sum(rails.values()) - 1.0) > RELATIVE_TOLERANCE:
        yield Violation(f"its shares sum to {sum(rails.values())}, not to 1", where)
    for rail, share in rails.items():
        if share < 0 or any((end, rail) not in facts.nic for end in ends):
            yield Violation(f"share {share} on rail {rail!r}, which both servers must have", where)
        elif (
            share > 0
            and facts.placement.sharing != "unshaped"
            and facts.rate.get((*ends, rail), 0.0) <= 0
        ):
            yield Violation(f"uses rail {rail!r}, on which its pair has no rate", where)


def _time_and_memory_violations(facts: Facts) -> Iterator[Violation]:
    placement = facts.placement
    times = recompute_times(facts)
    if times is None:
        yield Violation("the devices' orders wait for each other for ever (deadlock)", "order")
        return
    step = times.step_seconds
    if not math.isfinite(step):
        yield Violation("a message never arrives, or an operator never ends", "step_seconds")
        return
    if not abs(step - placement.step_seconds) <= RELATIVE_TOLERANCE * max(step, 1e-12):
        yield Violation(f"says {placement.step_seconds!r}, recomputed {step!r}", "step_seconds")
    memory = dict(
        zip(
            placement.cluster.device_names,
            placement.cluster.memory_bytes.tolist(),
            strict=True,
        )
    )
    for device, peak in recompute_memory(facts, times).items():
        if peak > memory[device]:
            yield Violation(f"needs {peak} bytes at its peak, has {memory[device]}", device)


def _claim_violations(facts: Facts) -> Iterator[Violation]:
    """The bound, the gap and the single device: what makes a placement look good."""
    graph, placement = facts.graph, facts.placement
    step, bound = placement.step_seconds, placement.bound_seconds
    try:
        problem = Problem(
            graph,
            placement.cluster,
            placement.sharing,
            placement.model,
            placement.backend,
            placement.entitled,
        )
        proven = lower_bound(problem).seconds
    except InfeasibleError as error:
        yield Violation(str(error), "cluster")
        return
    least = least_bound(graph, placement)
    if not bound <= step * (1 + RELATIVE_TOLERANCE):
        yield Violation(f"{bound!r} is above the step of {step!r}", "bound_seconds")
    elif not bound <= proven * (1 + RELATIVE_TOLERANCE):
        yield Violation(f"says {bound!r}, only {proven!r} can be proven", "bound_seconds")
    elif not bound >= least * (1 - RELATIVE_TOLERANCE):
        yield Violation(
            f"says {bound!r}, the longest path or the load alone give {least!r}", "bound_seconds"
        )
    gap = max(0.0, 1.0 - bound / step) if step > 0 else 0.0
    if not abs(placement.gap - gap) <= RELATIVE_TOLERANCE:
        yield Violation(f"says {placement.gap!r}, step and bound give {gap!r}", "gap")
    said, alone = placement.single_device_seconds, recompute_best_single(graph, placement)
    if (said is None) != (alone is None) or (
        said is not None and alone is not None and not math.isclose(said, alone, rel_tol=1e-6)
    ):
        yield Violation(
            f"says {_seconds_or_none(said)}, recomputed {_seconds_or_none(alone)}",
            "single_device_seconds",
        )


def _seconds_or_none(seconds: float | None) -> str:
    return "that no device can hold everything" if seconds is None else repr(seconds)
