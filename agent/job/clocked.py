"""A placed job's step node by node: with a look at the clock between, or at what is allocated."""

from __future__ import annotations

import time
from typing import Any

from torch import fx

from agent.job.lower import Complete, RankProgram, Receive, Send
from agent.job.recorder import Recorder
from optimizer.capture.allocations import Allocations


class ClockedStep(fx.Interpreter):
    """The rank's module, node by node: the same operators in the same order, so the same numbers.

    An operator is all that was made of it: its seed, itself, and the strides that it is given.
    """

    def __init__(self, program: RankProgram, recorder: Recorder) -> None:
        super().__init__(program.module)
        self._operators, self._recorder = program.operators, recorder
        module = program.module
        # What belongs to no operator; the last node of a step is the first thing before the next.
        self._passing = {module.graph.output_node().name} | {
            node.name
            for node in module.graph.find_nodes(op="call_module")
            if isinstance(module.get_submodule(str(node.target)), Send | Receive | Complete)
        }
        self._began: float | None = None
        self._allocations: Allocations | None = None

    def weigh(self, allocations: Allocations, *inputs: Any) -> Any:
        """As run(), with what each operator allocates noted there instead of when it ran."""
        self._allocations = allocations
        try:
            with allocations.watched():
                return self.run(*inputs)
        finally:
            self._allocations = None

    def run_node(self, n: fx.Node) -> Any:
        if self._allocations is not None:
            return self._weighed(n, self._allocations)
        started = time.perf_counter()
        value = super().run_node(n)
        if n.name in self._passing:
            self._began = None
            return value
        self._began = started if self._began is None else self._began
        if (identifier := self._operators.get(n.name)) is not None:
            self._recorder.operator(identifier, self._began, time.perf_counter())
            self._began = None
        return value

    def _weighed(self, n: fx.Node, allocations: Allocations) -> Any:
        operator = self._operator_of(n)
        if operator is None:
            return super().run_node(n)
        with allocations.of(operator):
            return super().run_node(n)

    def _operator_of(self, n: fx.Node) -> str | None:
        """Whose node it is: it ends with the first that has an operator's name."""
        while n.name not in self._operators:
            if n.name in self._passing:
                return None
            n = n.next
        return self._operators[n.name]
