"""Checks what a placement claims, independently of the engines and of the simulator.

Times, arrivals and memory are computed again in plain Python (`recompute`) from the graph and from
the file's devices, orders, rates, shares and send orders. A file contains no proof of its bound:
the bound is compared with what `bounds` proves for the graph and the cluster, and with two bounds
that `recompute` adds up. The check runs on every placement before it leaves the optimizer, and in
`optimizer check` on any file. What a file says of variants that were compared, whose least bound is
told to the user, is held against itself, and against their graphs where these are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from placewire.optimizer.check.recompute.facts import Facts
from placewire.optimizer.check.rules import claims, structure
from placewire.optimizer.check.rules.messages import colocation_violations, message_violations
from placewire.optimizer.check.rules.rates import rate_violations
from placewire.optimizer.check.rules.variants import (
    variant_graph_violations,
    variant_violations,
)
from placewire.optimizer.check.rules.violation import Violation
from placewire.optimizer.collector import collector_paused
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement

__all__ = ["Violation", "check"]

_STRUCTURAL: tuple[Callable[[OperatorGraph, Placement], Iterator[Violation]], ...] = (
    structure.graph_violations,
    structure.operator_violations,
    structure.order_violations,
    rate_violations,
    structure.message_name_violations,
    structure.bundle_violations,
    structure.send_order_violations,
)


@collector_paused()
def check(
    graph: OperatorGraph,
    placement: Placement,
    prove_seconds: float | None = None,
    variants: Sequence[OperatorGraph] | None = None,
) -> tuple[Violation, ...]:
    """Every violation that can be established; () where the placement holds.

    Times and memory are recomputed only where the structure is sound: names that do not exist have
    no time. prove_seconds: for how long to search again for the proof of a bound that needs a
    search; None accepts such a bound unproven. variants: the graphs of all variants that were
    compared, with or without the placed one; None accepts what the file says of them, as far as
    it can be true.
    """
    if found := [violation for rule in _STRUCTURAL for violation in rule(graph, placement)]:
        return tuple(found)
    facts = Facts(graph, placement)
    if found := [*colocation_violations(facts), *message_violations(facts)]:
        return tuple(found)
    return (
        *claims.time_and_memory_violations(facts),
        *claims.bound_violations(facts, prove_seconds),
        *claims.single_device_violations(facts),
        *variant_violations(placement),
        *(() if variants is None else variant_graph_violations(placement, variants)),
    )
