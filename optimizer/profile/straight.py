"""A captured step as one rank runs it: straight-line code, with a clock between operators.

What is between two readings of the clock is the operator, the release of what it was the last to
read, and Python's own work for it: all that a rank spends. So the operators' times add up to the
step's, up to what reading the clock takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.execute import Execution, execution_of
from placewire.optimizer.capture.layout import as_captured
from placewire.optimizer.capture.protocol import Tensors
from placewire.optimizer.capture.step import CapturedStep


def cuda_event() -> torch.cuda.Event:
    """Recorded now on the current stream: the device reads the clock when it comes to it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class StraightStep:
    """Trains the real parameters of `captured`. `clocked` names the operators that compute."""

    def __init__(self, captured: CapturedStep) -> None:
        self.captured = captured
        self.clocked = tuple(n.name for n in captured.analysis.nodes if n.op != "placeholder")
        self._on_cuda = captured.device.type == "cuda"
        self._root = torch.nn.Module()
        self._executions: dict[str, Execution] = {}
        for node in captured.analysis.nodes:
            self._add(node)
        for name, value in captured.code.constants.items():
            self._root.register_buffer(name, value)
        self._whole = fx.GraphModule(self._root, self._graph(None))
        clock: Callable[[], Any] = cuda_event if self._on_cuda else time.perf_counter
        self._by_operator = fx.GraphModule(self._root, self._graph(clock))

    @property
    def module(self) -> torch.nn.Module:
        """Holds all that stays between steps."""
        return self._root

    def load(self, step: int) -> Tensors:
        """The step's inputs, in the order of the captured inputs."""
        for execution in self._executions.values():
            for part in execution.stepped:
                part.step = step
        batch = self.captured.batches(step)
        return tuple(batch[position] for position in self.captured.code.inputs.values())

    def run(self, inputs: Tensors) -> float:
        """One step without clocks; its seconds."""
        with torch.no_grad():
            start = time.perf_counter()
            self._whole(*inputs)
            self._wait()
            return time.perf_counter() - start

    def run_clocked(self, inputs: Tensors) -> list[float]:
        """One step; the seconds of each operator of `clocked`."""
        with torch.no_grad():
            readings = self._by_operator(*inputs)
            self._wait()
        return _differences(readings)

    def _wait(self) -> None:
        if self._on_cuda:
            torch.cuda.synchronize()

    def _add(self, node: fx.Node) -> None:
        captured, name = self.captured, node.name
        if name in captured.values:
            self._root.register_buffer(name, captured.values[name])
        if node.op == "placeholder":
            return
        execution = self._executions[name] = execution_of(captured, node)
        if execution.update is not None:
            self._root.add_module(name, execution.update)
        if execution.seeder is not None:
            self._root.add_module(f"seed_{name}", execution.seeder)

    def _graph(self, clock: Callable[[], Any] | None) -> fx.Graph:
        """clock: called before every operator that computes, and once more at the end."""
        captured, graph = self.captured, fx.Graph()
        values = {name: graph.placeholder(name) for name in captured.code.inputs}
        readings: list[fx.Node] = []

        def operand(source: fx.Node) -> fx.Node:
            if source.name not in values:
                attribute = str(source.target) if source.op == "get_attr" else source.name
                values[source.name] = graph.get_attr(attribute)
            return values[source.name]

        for node in captured.analysis.nodes:
            if node.op == "placeholder":
                continue
            if clock is not None:
                readings.append(graph.call_function(clock))
            execution = self._executions[node.name]
            if execution.seeder is not None:
                graph.call_module(f"seed_{node.name}")
            value = graph.node_copy(node, operand)
            if (layout := execution.layout) is not None:
                value = graph.call_function(as_captured, (value, layout.size, layout.stride))
            values[node.name] = value
        if clock is not None:
            readings.append(graph.call_function(clock))
        graph.output(readings)
        return graph


def _differences(readings: Sequence[Any]) -> list[float]:
    """Seconds between neighbours: of time.perf_counter, or of CUDA events that have happened."""
    if readings and isinstance(readings[0], torch.cuda.Event):
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(readings)]
    return [after - before for before, after in pairwise(readings)]
