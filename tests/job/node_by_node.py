"""Trains a captured step operator by operator: an oracle for what ranks and profiles run.

It calls the operators itself, and shares none of the code that writes the graphs of those.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.layout import as_captured
from placewire.optimizer.capture.stepped import Seeder
from placewire.optimizer.capture.updates import parameter_update


def train_node_by_node(captured: CapturedStep, steps: int) -> None:
    """Changes captured.values in place, as `steps` steps do."""
    analysis, code = captured.analysis, captured.code
    parts = {
        node.name: parameter_update(captured.optimizer, captured.values[code.writers[node.name]])
        for node in analysis.nodes
        if node.op == "call_module"
    }
    constants = {
        node.name: code.constants[str(node.target)] for node in code.graph.find_nodes(op="get_attr")
    }
    for step in range(steps):
        batch = captured.batches(step)
        inputs = {name: batch[position] for name, position in code.inputs.items()}
        values: dict[str, Any] = {**captured.values, **constants, **inputs}
        for node in analysis.nodes:
            if node.name in values:
                continue
            if (drawn := analysis.random.get(node.name)) is not None:
                seeder = Seeder(captured.seed, drawn, "cpu")
                seeder.step = step
                seeder()
            call: Any = node.target
            if (part := parts.get(node.name)) is not None:
                part.step, call = step, part
            of = partial(_value_of, values)
            arguments, options = fx.node.map_arg(node.args, of), fx.node.map_arg(node.kwargs, of)
            with torch.no_grad():
                value = call(*arguments, **options)
            if node.name in analysis.fresh:
                layout = analysis.layouts[node.name]
                value = as_captured(value, layout.size, layout.stride)
            values[node.name] = value


def _value_of(values: dict[str, Any], node: fx.Node) -> Any:
    return values[node.name]
