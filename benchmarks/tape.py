"""The Tape, on which forward operators are written down one by one, and which then makes the
backward pass and the updates.

The graph is like a captured one: a weight's gradient and an input's gradient are operators of their
own, gradients that meet are added, and a parameter shares a device with its update and is
overwritten only after its last reader. FLOPs, memory traffic and bytes follow from the shapes, in
float32; an operator's storage counts once, and a view has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)

FLOAT_BYTES = 4
# AdamW keeps two values beside each weight; an update reads and writes all three, and reads the
# gradient.
STATE_VALUES, UPDATE_TRAFFIC, UPDATE_FLOPS = 2, 7, 12


@dataclass(frozen=True)
class Value:
    """The tensor that an operator writes."""

    operator: str
    elements: int


# An input of an operator, and what makes its gradient of that of the operator's output.
Back = tuple[Value, Callable[[Value], Value]]


class Tape:
    """Operators in the order in which they were written down, which is a topological one."""

    def __init__(self) -> None:
        self.parameters: list[Value] = []
        self.gradients: dict[str, Value] = {}
        self._rows: list[OperatorRow] = []
        self._size: dict[str, int] = {}
        self._readers: dict[str, list[str]] = defaultdict(list)
        self._updates_after: dict[str, list[str]] = defaultdict(list)
        self._backward: list[tuple[Value, tuple[Back, ...]]] = []
        self._forward: frozenset[str] = frozenset()

    @property
    def operator_count(self) -> int:
        return len(self._rows)

    def operator(
        self, name: str, kind: str, inputs: list[Value], elements: int, flops: int
    ) -> Value:
        """Adds an operator that reads its inputs and writes a tensor of so many elements."""
        size = elements * FLOAT_BYTES
        traffic = size + sum(value.elements for value in inputs) * FLOAT_BYTES
        row = OperatorRow(name, kind, {}, activation_bytes=size, flops=flops, traffic_bytes=traffic)
        return self._write(row, inputs, elements)

    def input(self, name: str, elements: int) -> Value:
        row = OperatorRow(name, "input", {}, activation_bytes=elements * FLOAT_BYTES)
        return self._write(row, [], elements)

    def parameter(self, name: str, elements: int) -> Value:
        identifier = f"parameter_{name}"
        held = (1 + STATE_VALUES) * elements * FLOAT_BYTES
        row = OperatorRow(identifier, "parameter", {}, weight_bytes=held, colocation=name)
        self.parameters.append(self._write(row, [], elements))
        return self.parameters[-1]

    def embedding(self, name: str, tokens: Value, words: int, width: int) -> Value:
        table = self.parameter(f"{name}_weight", words * width)
        kind, elements = "aten.embedding.default", tokens.elements * width
        y = self.operator(name, kind, [table, tokens], elements, 0)
        back = "aten.embedding_dense_backward.default"
        return self._passes_back(y, self._to(table, f"{name}_dw", back, [tokens], y.elements))

    def linear(self, name: str, x: Value, rows: int, outputs: int) -> Value:
        """Turns x of rows x inputs elements into rows x outputs elements, with a bias."""
        inputs = x.elements // rows
        weight = self.parameter(f"{name}_weight", inputs * outputs)
        bias = self.parameter(f"{name}_bias", outputs)
        flops, kind = 2 * rows * inputs * outputs, "aten.mm.default"
        y = self.operator(name, "aten.addmm.default", [bias, x, weight], rows * outputs, flops)
        self._passes_back(
            y,
            self._to(x, f"{name}_dx", kind, [weight], flops),
            self._to(weight, f"{name}_dw", kind, [x], flops),
            self._to(bias, f"{name}_db", "aten.sum.dim_IntList", [], y.elements),
        )
        return self._passes_back(
            self._view(f"{name}_view", y), (y, lambda g: self._view(f"{name}_view_backward", g))
        )

    def product(self, name: str, a: Value, b: Value, elements: int, flops: int) -> Value:
        """A batched matrix product of two activations."""
        kind = "aten.bmm.default"
        return self._passes_back(
            self.operator(name, kind, [a, b], elements, flops),
            self._to(a, f"{name}_da", kind, [b], flops),
            self._to(b, f"{name}_db", kind, [a], flops),
        )

    def elementwise(self, name: str, kind: str, x: Value, flops_each: int) -> Value:
        """Its backward reads the gradient and x."""
        flops = flops_each * x.elements
        y = self.operator(name, f"aten.{kind}.default", [x], x.elements, flops)
        back = f"aten.{kind}_backward.default"
        return self._passes_back(y, self._to(x, f"{name}_backward", back, [x], flops))

    def norm(self, name: str, x: Value, width: int) -> Value:
        scale, shift = (self.parameter(f"{name}_{part}", width) for part in ("scale", "shift"))
        kind, total, flops = "aten.native_layer_norm", "aten.sum.dim_IntList", 8 * x.elements
        return self._passes_back(
            self.operator(name, f"{kind}.default", [x, scale, shift], x.elements, flops),
            self._to(x, f"{name}_dx", f"{kind}_backward.default", [x, scale], flops),
            self._to(scale, f"{name}_ds", total, [x], 2 * x.elements),
            self._to(shift, f"{name}_dh", total, [], x.elements),
        )

    def add(self, name: str, a: Value, b: Value) -> Value:
        """The gradient of the sum is that of both inputs, so the backward pass adds no operator."""
        y = self.operator(name, "aten.add.Tensor", [a, b], a.elements, a.elements)
        return self._passes_back(y, (a, lambda gradient: gradient), (b, lambda gradient: gradient))

    def _view(self, name: str, of: Value) -> Value:
        return self._write(OperatorRow(name, "aten.view.default", {}), [of], of.elements)

    def _to(self, x: Value, name: str, kind: str, inputs: list[Value], flops: int) -> Back:
        """An operator of the backward pass that reads a gradient and the inputs, for that of x."""
        return x, lambda g: self.operator(name, kind, [g, *inputs], x.elements, flops)

    def _passes_back(self, y: Value, *backs: Back) -> Value:
        """Takes note of how y's gradient becomes those of its inputs; returns y."""
        self._backward.append((y, backs))
        return y

    def arrives(self, at: Value, gradient: Value) -> None:
        """Takes note of a gradient of a value; adds it to the gradients that came before."""
        known = self.gradients.get(at.operator)
        if known is not None:
            name = f"{at.operator}_gradient_{gradient.operator}"
            both = [known, gradient]
            gradient = self.operator(name, "aten.add.Tensor", both, at.elements, at.elements)
        self.gradients[at.operator] = gradient

    def backward(self) -> None:
        """Makes the backward pass from the gradients that are known, last operator first."""
        self._forward = frozenset(self._size)
        for y, backs in reversed(self._backward):
            for x, gradient_of_x in backs:
                self.arrives(x, gradient_of_x(self.gradients[y.operator]))

    def updates(self) -> None:
        """Adds an in-place update for each parameter."""
        for parameter in self.parameters:
            self._update(parameter, self.gradients[parameter.operator])

    def _update(self, parameter: Value, gradient: Value) -> None:
        name = parameter.operator.removeprefix("parameter_")
        traffic = UPDATE_TRAFFIC * parameter.elements * FLOAT_BYTES
        row = OperatorRow(
            f"update_{name}", "update", {}, flops=UPDATE_FLOPS * parameter.elements,
            traffic_bytes=traffic, colocation=name,
        )  # fmt: skip
        # The update must follow readers in the backward pass; forward readers come before every
        # gradient anyway.
        for reader in self._readers[parameter.operator]:
            if reader not in self._forward and reader != gradient.operator:
                self._updates_after[reader].append(row.id)
        self._write(row, [parameter, gradient], 0)

    def _write(self, row: OperatorRow, inputs: list[Value], elements: int) -> Value:
        self._rows.append(row)
        self._size[row.id] = elements * FLOAT_BYTES
        for value in inputs:
            self._readers[value.operator].append(row.id)
        return Value(row.id, elements)

    def graph(self, name: str) -> OperatorGraph:
        tensors = []
        for row in self._rows:
            if readers := self._readers[row.id]:
                tensors.append(TensorRow(row.id, tuple(readers), self._size[row.id]))
            if updates := self._updates_after[row.id]:
                tensors.append(TensorRow(row.id, tuple(updates), 0))
        return build_graph(self._rows, tensors, name=name, device_types=())
