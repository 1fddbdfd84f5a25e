"""A recorded step of a placed job: node by node, with a look at the clock between."""

from __future__ import annotations

import time
from typing import Any

from torch import fx

from agent.job.lower import Complete, RankProgram, Receive, Send
from agent.job.recorder import Recorder


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

    def run_node(self, n: fx.Node) -> Any:
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
