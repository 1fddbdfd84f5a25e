"""A captured step run operator by operator on one device, as a rank runs it.

The same seeds, layouts and updates as on a rank; values are released after their last use. Between
two operators the interpreter takes some microseconds, which no operator is charged for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.execute import execution_of
from placewire.optimizer.capture.layout import Layout, as_captured
from placewire.optimizer.capture.step import CapturedStep
from placewire.optimizer.capture.stepped import Seeder, Stepped

Call = Callable[..., Any]


@dataclass(frozen=True)
class _Instruction:
    node: fx.Node
    call: Call
    dead: tuple[str, ...]  # values that nobody needs afterwards


class StepInterpreter:
    """Holds the real parameters of `captured` and trains them: steps change them in place."""

    def __init__(self, captured: CapturedStep) -> None:
        self.captured = captured
        self._resident = {**captured.values, **_constants(captured)}
        self._stepped: list[Stepped] = []
        self._instructions = self._make_instructions()

    def load(self, step: int) -> dict[str, torch.Tensor]:
        """The step's inputs by operator id."""
        for part in self._stepped:
            part.step = step
        batch = self.captured.batches(step)
        return {name: batch[position] for name, position in self.captured.code.inputs.items()}

    def run(self, inputs: dict[str, torch.Tensor]) -> float:
        """One step; the seconds of the whole."""
        with torch.no_grad():
            start = time.perf_counter()
            values: dict[str, Any] = {**self._resident, **inputs}
            for instruction in self._instructions:
                node = instruction.node
                arguments = fx.node.map_arg(node.args, lambda n: values[n.name])
                options = fx.node.map_arg(node.kwargs, lambda n: values[n.name])
                values[node.name] = instruction.call(*arguments, **options)
                for name in instruction.dead:
                    del values[name]
            return time.perf_counter() - start

    def run_each(
        self, inputs: dict[str, torch.Tensor], around: Callable[[str, Call, Any, Any], Any]
    ) -> None:
        """One step; around(id, call, arguments, options) makes each operator's value by call."""
        with torch.no_grad():
            values: dict[str, Any] = {**self._resident, **inputs}
            for instruction in self._instructions:
                node = instruction.node
                arguments = fx.node.map_arg(node.args, lambda n: values[n.name])
                options = fx.node.map_arg(node.kwargs, lambda n: values[n.name])
                values[node.name] = around(node.name, instruction.call, arguments, options)
                del arguments, options
                for name in instruction.dead:
                    del values[name]

    def _make_instructions(self) -> list[_Instruction]:
        computing = [node for node in self.captured.analysis.nodes if node.op != "placeholder"]
        last_use: dict[str, int] = {}
        for position, node in enumerate(computing):
            last_use[node.name] = position
            for source in node.all_input_nodes:
                if source.name not in self._resident:
                    last_use[source.name] = position
        dead: list[list[str]] = [[] for _ in computing]
        for name, position in last_use.items():
            dead[position].append(name)
        return [
            _Instruction(node, self._callable(node), tuple(names))
            for node, names in zip(computing, dead, strict=True)
        ]

    def _callable(self, node: fx.Node) -> Callable[..., Any]:
        execution = execution_of(self.captured, node)
        self._stepped.extend(execution.stepped)
        target: Any = node.target
        call: Callable[..., Any] = execution.update or target
        if execution.seeder is not None:
            call = _seeded(call, execution.seeder)
        if execution.layout is not None:
            call = _in_layout(call, execution.layout)
        return call


def _constants(captured: CapturedStep) -> dict[str, torch.Tensor]:
    nodes = captured.code.graph.find_nodes(op="get_attr")
    return {node.name: captured.code.constants[str(node.target)] for node in nodes}


def _seeded(call: Callable[..., Any], seeder: Seeder) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        seeder()
        return call(*arguments, **options)

    return run


def _in_layout(call: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        return as_captured(call(*arguments, **options), layout.size, layout.stride)

    return run
