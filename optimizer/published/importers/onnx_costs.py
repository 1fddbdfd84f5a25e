"""Counts the FLOPs and bytes of an ONNX node from shapes alone; its time is modelled from them.

They are counted as capture counts (optimizer/capture/costs.py). A multiplication and an addition
are two FLOPs; products, convolutions, recurrences and attention have formulas; a Fourier transform
costs 5 n log2 n per line, a reduction one FLOP per element that it reads, a pooling one per element
of each window, everything else one per element that it writes, times a constant for transcendental
functions. Every input is read once and every output written once; views cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.published.importers.onnx_model import OWN_DOMAINS, Scope, Value

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_FREE = VIEWS | {"Shape", "Size"}
_FILLS = frozenset({"ConstantOfShape", "EyeLike", "Range"})
_GATHERS = frozenset({"Gather", "GatherElements", "GatherND"})
_REDUCTIONS = ("Reduce", "ArgM", "Global")
_PER_ELEMENT = {
    "Exp": 8, "Log": 8, "Tanh": 12, "Sigmoid": 10, "Erf": 12, "Gelu": 16, "Sin": 12, "Cos": 12,
    "Pow": 12, "Sqrt": 2, "Softmax": 12, "LogSoftmax": 14, "LayerNormalization": 8,
    "RMSNormalization": 6, "GroupNormalization": 8, "InstanceNormalization": 8,
    "BatchNormalization": 4, "Swish": 12, "Mish": 24, "Softplus": 16, "Elu": 9, "Selu": 9,
}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    flops: int
    traffic_bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.traffic_bytes + other.traffic_bytes)

    def times(self, count: int) -> Cost:
        return Cost(self.flops * count, self.traffic_bytes * count)


_NOTHING = Cost(0, 0)
Sizes = Sequence[Value | None]
Formula = Callable[[Any, Sizes, Sizes], int]


def node_cost(node: Any, scope: Scope, where: str) -> Cost:
    """Raises GraphError, beginning with `where`, where a size or a loop's length is unknown."""
    own = node.domain in OWN_DOMAINS
    if own and node.op_type in ("If", "Loop", "Scan"):
        return _control(node, scope, where)
    if own and node.op_type in _FREE:
        return _NOTHING
    inputs = [scope.value(name, where) if name else None for name in node.input]
    outputs = [scope.value(name, where) if name else None for name in node.output]
    formula = _FORMULAS.get(node.op_type) if own else None
    try:
        flops = formula(node, inputs, outputs) if formula else _elements(node, inputs, outputs)
    except (IndexError, AttributeError, KeyError):
        raise GraphError(
            f"{where}: its inputs do not have the shapes that this operator needs: "
            f"{[list(v.shape) if v else None for v in inputs]}"
        ) from None
    return Cost(flops, _traffic(node, inputs, outputs))


def attribute(node: Any, name: str, default: Any = None) -> Any:
    for one in node.attribute:
        if one.name == name:
            from onnx import helper

            return helper.get_attribute_value(one)
    return default


def bodies(node: Any, scope: Scope) -> list[Scope]:
    return [Scope(one.g, scope) for one in node.attribute if one.HasField("g")]


def _control(node: Any, scope: Scope, where: str) -> Cost:
    """The larger branch of an If; of a loop, its body times how often it runs."""
    each = [
        sum((node_cost(n, body, f"{where}: {n.op_type} {n.name!r}") for n in body.nodes), _NOTHING)
        for body in bodies(node, scope)
    ]
    if node.op_type == "If":
        return max(each, key=lambda cost: cost.flops, default=_NOTHING)
    return each[0].times(_turns(node, scope, where))


def _turns(node: Any, scope: Scope, where: str) -> int:
    if node.op_type == "Loop":
        turns = scope.whole_number(node.input[0]) if node.input[0] else None
        if turns is None:
            raise GraphError(
                f"{where}: how often it runs its body depends on values; unroll the loop, or "
                "export it with a constant count"
            )
        return turns
    scanned: int = attribute(node, "num_scan_inputs", 1)
    axes: list[int] = attribute(node, "scan_input_axes", [0] * scanned)
    return scope.value(node.input[len(node.input) - scanned], where).shape[axes[0]]


def _first(sizes: Sizes) -> Value:
    return next(size for size in sizes if size is not None)


def _elements(node: Any, inputs: Sizes, outputs: Sizes) -> int:
    if node.op_type in _FILLS:
        return 0
    written = max((v.elements for v in outputs if v), default=0)
    if node.op_type.startswith(_REDUCTIONS):
        return max((v.elements for v in inputs if v), default=0)
    return written * _PER_ELEMENT.get(node.op_type, 1)


def _product(_: Any, inputs: Sizes, outputs: Sizes) -> int:
    return 2 * _first(outputs).elements * _first(inputs).shape[-1]


def _gemm(node: Any, inputs: Sizes, outputs: Sizes) -> int:
    inner = _first(inputs).shape[0 if attribute(node, "transA", 0) else 1]
    return _first(outputs).elements * (2 * inner + (len(inputs) > 2))


def _convolution(_: Any, inputs: Sizes, outputs: Sizes, weight: int = 1) -> int:
    """weight: the number of the input that holds the weights."""
    return 2 * _first(outputs).elements * math.prod(_at(inputs, weight).shape[1:])


def _transposed(_: Any, inputs: Sizes, __: Sizes) -> int:
    return 2 * _at(inputs, 0).elements * math.prod(_at(inputs, 1).shape[1:])


def _recurrence(_: Any, inputs: Sizes, __: Sizes) -> int:
    """X: [sequence, batch, features]; W and R: [directions, gates x hidden, …]."""
    x, w, r = (_at(inputs, k) for k in range(3))
    return 2 * math.prod(x.shape[:2]) * (w.elements + r.elements)


def _attention(_: Any, inputs: Sizes, outputs: Sizes) -> int:
    """Each element of the queries meets every key, each element of the result every value."""
    present = outputs[1] if len(outputs) > 1 else None
    keys = (present or _at(inputs, 1)).shape[-2]
    return 2 * keys * (_at(inputs, 0).elements + _first(outputs).elements)


def _pooling(node: Any, _: Sizes, outputs: Sizes) -> int:
    window: list[int] = attribute(node, "kernel_shape", [1])
    return _first(outputs).elements * math.prod(window)


def _transform(_: Any, inputs: Sizes, outputs: Sizes) -> int:
    """The last axis holds the real and the imaginary part."""
    elements = _first(outputs).elements // 2
    points = max(_at(inputs, 0).shape[1:-1], default=2)
    return int(5 * elements * math.log2(max(points, 2)))


def _einsum(node: Any, inputs: Sizes, outputs: Sizes) -> int:
    """Each element of the result has a product per setting of the letters summed over."""
    terms, _, result = attribute(node, "equation").decode().replace(" ", "").partition("->")
    size: dict[str, int] = {}
    for term, value in zip(terms.split(","), inputs, strict=True):
        before, dots, after = term.partition("...")
        shape = value.shape if value else ()
        size.update(zip(before, shape, strict=not dots))
        size.update(zip(reversed(after), reversed(shape), strict=False))
    if not result:
        result = "".join(letter for letter in size if terms.count(letter) == 1)
    summed = math.prod(size[letter] for letter in size if letter not in result)
    return (2 if summed > 1 or len(inputs) > 1 else 1) * _first(outputs).elements * summed


def _at(sizes: Sizes, k: int) -> Value:
    value = sizes[k]
    if value is None:
        raise IndexError(k)
    return value


_FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    **dict.fromkeys(("Conv", "ConvInteger"), _convolution),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrence),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pooling),
    "QLinearConv": partial(_convolution, weight=3),
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "Attention": _attention,
    "DFT": _transform,
    "Einsum": _einsum,
}


def _traffic(node: Any, inputs: Sizes, outputs: Sizes) -> int:
    written = sum(value.bytes for value in outputs if value)
    if node.op_type in _GATHERS:  # reads only as many elements as it writes, and the indices
        return 2 * written + _at(inputs, 1).bytes
    read: dict[str, Value | None] = dict(zip(node.input, inputs, strict=True))
    return written + sum(value.bytes for value in read.values() if value)
