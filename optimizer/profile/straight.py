"""Runs a captured step on one device as a rank would: straight-line code, with clocks where asked.

Between two readings of the clock lie the operator, the release of what it was the last to read, and
Python's own work for it: all that a rank spends. The operators' times therefore add up to the
step's, but for what reading the clock takes.

On CUDA the clock is the device's, and the device is kept busy until the clocked step is on its
queue: else an operator's time would be that of Python and of the clock wherever these are slower
than the device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.allocations import weigh
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.execute import execution_of, with_clock
from placewire.optimizer.capture.protocol import Tensors
from placewire.optimizer.capture.stepped import Stepped

# A clocked step takes longer to be put on the queue than one without clocks.
_HELD_STEPS = 2.0


class StraightStep:
    """Holds the real parameters of `captured` and trains them: steps change them in place.

    module: one step; it holds all that stays between steps. clocked: the operators that compute.
    """

    def __init__(self, captured: CapturedStep) -> None:
        self.captured = captured
        self._on_cuda = captured.device.type == "cuda"
        self._issue_seconds = 0.0
        self._stepped: list[Stepped] = []
        root = torch.nn.Module()
        for name, value in (*captured.values.items(), *captured.code.constants.items()):
            root.register_buffer(name, value)
        graph, ends = self._graph(root)
        self.clocked = tuple(ends.values())
        self.module = fx.GraphModule(root, graph)
        self._ends: dict[str, str | None] = {**ends}
        clock: Callable[[], Any] = cuda_event if self._on_cuda else time.perf_counter
        self._timed = fx.GraphModule(root, with_clock(graph, ends, clock))

    def load(self, step: int) -> Tensors:
        """Returns the step's inputs, in the order of the captured inputs."""
        for part in self._stepped:
            part.step = step
        batch = self.captured.batches(step)
        return tuple(batch[position] for position in self.captured.code.inputs.values())

    def run(self, inputs: Tensors) -> Any:
        """Runs one step without clocks. Returns its loss; of an inference the tuple of outputs."""
        with torch.no_grad():
            begun = time.perf_counter()
            result = self.module(*inputs)
            self._issue_seconds = time.perf_counter() - begun
            self._wait()
        return result

    def run_clocked(self, inputs: Tensors) -> list[float]:
        """Runs one step. Returns the seconds of each operator of `clocked`."""
        with torch.no_grad():
            if self._on_cuda:
                keep_device_busy(_HELD_STEPS * self._issue_seconds)
            _, readings = self._timed(*inputs)
            self._wait()
        return _differences(readings)

    def run_weighed(self, inputs: Tensors) -> dict[str, int]:
        """Runs one step, which must not be the first. Returns the peaks that weigh() finds."""
        _, peaks = weigh(self.module, self._ends, inputs, self.captured.device.type)
        return peaks

    def _wait(self) -> None:
        if self._on_cuda:
            torch.cuda.synchronize()

    def _graph(self, root: torch.nn.Module) -> tuple[fx.Graph, dict[str, str]]:
        """Returns the graph of a step, and by name of each node that ends an operator its id."""
        captured, graph = self.captured, fx.Graph()
        values = {name: graph.placeholder(name) for name in captured.code.inputs}
        ends: dict[str, str] = {}

        def operand(source: fx.Node) -> fx.Node:
            if source.name not in values:
                attribute = str(source.target) if source.op == "get_attr" else source.name
                values[source.name] = graph.get_attr(attribute)
            return values[source.name]

        for node in captured.analysis.nodes:
            if node.op != "placeholder":
                execution = execution_of(captured, node)
                self._stepped.extend(execution.stepped)
                values[node.name] = execution.write(node, graph, root, operand)
                ends[values[node.name].name] = node.name
        outputs = captured.code.outputs
        graph.output(tuple(values[o] for o in outputs) if outputs else values[captured.loss])
        return graph, ends


def cuda_event() -> torch.cuda.Event:
    """Records an event on the current stream: the device reads its clock when it reaches it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def keep_device_busy(seconds: float) -> None:
    """Has what comes after it on the current stream wait for about this long."""
    torch.cuda._sleep(int(seconds * _cycles_per_second()))


@functools.cache
def _cycles_per_second() -> float:
    """By which the device waits: no property of the device says how fast it is now."""
    cycles = 10_000_000
    seconds = list[float]()
    for _ in range(2):  # The first wait also loads the kernel.
        begun = cuda_event()
        torch.cuda._sleep(cycles)
        ended = cuda_event()
        torch.cuda.synchronize()
        seconds.append(begun.elapsed_time(ended) / 1e3)
    return cycles / seconds[-1]


def _differences(readings: Sequence[Any]) -> list[float]:
    """Seconds between neighbours: readings of time.perf_counter, or CUDA events that happened."""
    if readings and isinstance(readings[0], torch.cuda.Event):
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(readings)]
    return [after - before for before, after in pairwise(readings)]
