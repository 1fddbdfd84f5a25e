"""Runs a placed job's step with a reading of the clock after each operator."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from placewire.job.placed.lower import Complete, Pack, RankProgram, Receive, Send, Unpack
from placewire.job.placed.recorder import Recorder
from placewire.optimizer.capture.execute import with_clock


class ClockedStep:
    """Runs the same operators in the same order, so that the numbers are the same.

    The time of an operator covers all nodes that were made of it: its seed, itself, its strides.
    ends: by node name the operator that the node ends; None where it ends something else (a send, a
    receive, a wait for a send, a copy to or from a bundle, the step).
    """

    def __init__(self, program: RankProgram, recorder: Recorder, device_type: str) -> None:
        self._module, self._recorder = program.module, recorder
        self._clock = synchronised_clock if device_type == "cuda" else time.perf_counter
        self.ends: dict[str, str | None] = {program.module.graph.output_node().name: None}
        for node in program.module.graph.find_nodes(op="call_module"):
            part = program.module.get_submodule(str(node.target))
            if isinstance(part, Send | Receive | Complete | Pack | Unpack):
                self.ends[node.name] = None
        self.ends |= program.operators
        inputs = [node.name for node in program.module.graph.find_nodes(op="placeholder")]
        self._inputs = [program.operators[name] for name in inputs]
        # For each reading of the clock but the first the operator that ended, if one did.
        self._ended = [
            self.ends[node.name]
            for node in program.module.graph.nodes
            if node.name in self.ends and node.op not in ("placeholder", "output")
        ]
        self._timed: fx.GraphModule | None = None

    def run(self, *inputs: Any) -> Any:
        """Returns what RankProgram.module does."""
        if self._timed is None:
            clocked = with_clock(self._module.graph, self.ends, self._clock)
            self._timed = fx.GraphModule(self._module, clocked)
        reported, readings = self._timed(*inputs)
        for identifier in self._inputs:  # there when the step begins
            self._recorder.operator(identifier, readings[0], readings[0])
        for operator, (began, ended) in zip(self._ended, pairwise(readings), strict=True):
            if operator is not None:
                self._recorder.operator(operator, began, ended)
        return reported


def synchronised_clock() -> float:
    """Reads the clock once the device, which lags behind the host, has finished its work."""
    torch.cuda.synchronize()
    return time.perf_counter()
