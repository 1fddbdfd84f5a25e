"""Writes one operator of a captured step into a graph that runs it, on whatever rank or device."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.layout import Layout, as_captured
from placewire.optimizer.capture.stepped import Seeder, Stepped
from placewire.optimizer.capture.updates import Update, parameter_update


@dataclass(frozen=True)
class Execution:
    """What runs with a node beside its target and arguments.

    seeder: runs right before the node. update: the module that a call_module node calls. layout:
    what the result is brought to (`as_captured`), where the node allocates its result.
    """

    seeder: Seeder | None
    update: Update | None
    layout: Layout | None

    @property
    def stepped(self) -> tuple[Stepped, ...]:
        """The modules that must be told the number of each step."""
        return tuple(part for part in (self.seeder, self.update) if part is not None)

    def write(
        self,
        node: fx.Node,
        graph: fx.Graph,
        root: torch.nn.Module,
        operand: Callable[[fx.Node], fx.Node],
    ) -> fx.Node:
        """Appends the operator to the graph and its modules to root. Returns its value's node.

        operand: from a captured node to the node that has its value in the graph.
        """
        if self.update is not None:
            root.add_module(node.name, self.update)
        if self.seeder is not None:
            name = f"seed_{node.name}"
            root.add_module(name, self.seeder)
            graph.create_node("call_module", name, name=name)
        value = graph.node_copy(node, operand)
        if self.layout is None:
            return value
        return graph.call_function(as_captured, (value, self.layout.size, self.layout.stride))


def execution_of(
    captured: CapturedStep, node: fx.Node, updates: Mapping[str, Update] | None = None
) -> Execution:
    """For an operator that computes; on the real parameter. updates: by parameter, those that are
    there already, with their optimizer state; others get a new one."""
    analysis, update = captured.analysis, None
    if node.op == "call_module":
        written = captured.code.writers[node.name]
        update = (updates or {}).get(written)
        if update is None:
            choice = captured.code.choice_of(captured.optimizer, written)
            update = parameter_update(choice, captured.values[written])
    drawn = analysis.random.get(node.name)
    return Execution(
        seeder=None if drawn is None else Seeder(captured.seed, drawn, captured.device.type),
        update=update,
        layout=analysis.layouts[node.name] if node.name in analysis.fresh else None,
    )


def with_clock(graph: fx.Graph, ends: Container[str], clock: Callable[[], object]) -> fx.Graph:
    """Returns a copy of the graph that returns its result and a list of readings of the clock: one
    before the first node that is no input, and one after each other node whose name is in `ends`.
    """
    copy, values = fx.Graph(), dict[fx.Node, fx.Node]()
    readings: list[fx.Node] = []
    for node in graph.nodes:
        if node.op != "placeholder" and not readings:
            readings.append(copy.call_function(clock))
        if node.op == "output":
            copy.output((fx.node.map_arg(node.args[0], values.__getitem__), readings))
            break
        values[node] = copy.node_copy(node, values.__getitem__)
        if node.op != "placeholder" and node.name in ends:
            readings.append(copy.call_function(clock))
    return copy
