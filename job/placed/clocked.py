"""A placed job's step with a look at the clock after each operator, or at what each allocates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from placewire.job.placed.lower import Complete, RankProgram, Receive, Send
from placewire.job.placed.recorder import Recorder
from placewire.optimizer.capture.allocations import Allocations


class ClockedStep:
    """The rank's operators in their order, so that the numbers are the same.

    An operator is all that was made of it: its seed, itself, and the strides that it is given. Of
    what it was the last to read the release is the next one's.
    """

    def __init__(self, program: RankProgram, recorder: Recorder, device_type: str) -> None:
        self._program, self._recorder = program, recorder
        self._device_type = device_type
        module = program.module
        # What belongs to no operator; the last node of a step is the first thing before the next.
        self._passing = {module.graph.output_node().name} | {
            node.name
            for node in module.graph.find_nodes(op="call_module")
            if isinstance(module.get_submodule(str(node.target)), Send | Receive | Complete)
        }
        placeholders = module.graph.find_nodes(op="placeholder")
        self._inputs = [program.operators[node.name] for node in placeholders]
        # What ended at each reading of the clock but the first; None: no operator.
        self._ended: list[str | None] = []
        self._timed: fx.GraphModule | None = None

    def run(self, *inputs: Any) -> Any:
        if self._timed is None:
            self._timed = fx.GraphModule(self._program.module, self._with_clock())
        loss, readings = self._timed(*inputs)
        for identifier in self._inputs:  # there when the step begins
            self._recorder.operator(identifier, readings[0], readings[0])
        for operator, began, ended in zip(self._ended, readings, readings[1:], strict=False):
            if operator is not None:
                self._recorder.operator(operator, began, ended)
        return loss

    def weigh(self, allocations: Allocations, *inputs: Any) -> Any:
        """As run(), with what each operator allocates noted there instead of when it ran."""
        with allocations.watched():
            return _Weighed(self._program.module, self._operator_of, allocations).run(*inputs)

    def _with_clock(self) -> fx.Graph:
        """The program's graph, with a reading before the first operator and after every other."""
        clock = synchronised_clock if self._device_type == "cuda" else time.perf_counter
        graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
        readings: list[fx.Node] = []
        for node in self._program.module.graph.nodes:
            if node.op != "placeholder" and not readings:
                readings.append(graph.call_function(clock))
            if node.op == "output":
                loss = node.args[0]
                graph.output((values[loss] if isinstance(loss, fx.Node) else None, readings))
                break
            values[node] = graph.node_copy(node, values.__getitem__)
            operator = self._program.operators.get(node.name)
            if node.op != "placeholder" and (operator or node.name in self._passing):
                readings.append(graph.call_function(clock))
                self._ended.append(operator)
        return graph

    def _operator_of(self, node: fx.Node) -> str | None:
        """Whose node it is: it ends with the first that has an operator's name."""
        while node.name not in self._program.operators:
            if node.name in self._passing:
                return None
            node = node.next
        return self._program.operators[node.name]


class _Weighed(fx.Interpreter):
    def __init__(
        self,
        module: fx.GraphModule,
        operator_of: Callable[[fx.Node], str | None],
        allocations: Allocations,
    ) -> None:
        super().__init__(module)
        self._operator_of, self._allocations = operator_of, allocations

    def run_node(self, n: fx.Node) -> Any:
        operator = self._operator_of(n)
        if operator is None:
            return super().run_node(n)
        with self._allocations.of(operator):
            return super().run_node(n)


def synchronised_clock() -> float:
    """Of a device that runs behind the host: all that was handed to it is done."""
    torch.cuda.synchronize()
    return time.perf_counter()
