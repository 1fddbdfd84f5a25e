"""Decodes an ONNX file to nodes and sizes, infers its shapes, and never reads its large weights.

Sizes follow from shapes and types alone, so that the values of weights are not needed: those in the
file are dropped before shapes are inferred, and files beside it are not opened. Only values small
enough to be a shape or an axis are kept, or read, because other shapes follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.optimizer.graph.operator_graph import GraphError

# A tensor of more bytes cannot be a shape, and its values are not looked at.
SMALL_BYTES = 4096
OWN_DOMAINS = ("", "ai.onnx")
# The bits of element types of less than a byte; numpy knows the sizes of the others.
_PACKED_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
_VALUE_FIELDS = (
    "raw_data", "float_data", "int32_data", "int64_data", "uint64_data", "double_data",
)  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A tensor of the model. type: ONNX's name of the elements' type, like FLOAT16."""

    type: str
    shape: tuple[int, ...]
    item_bits: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return -(-self.elements * self.item_bits // 8)


class Scope:
    """A graph of the model: the main one, or a node's body, which sees values of outer graphs."""

    def __init__(self, graph: Any, outer: Scope | None = None) -> None:
        self.graph = graph
        self.outer = outer
        self._stated = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._constants = {node.output[0]: node for node in graph.node if _is_constant(node)}

    @property
    def nodes(self) -> list[Any]:
        """All nodes but the Constant ones, which are weights."""
        return [node for node in self.graph.node if not _is_constant(node)]

    @property
    def inputs(self) -> list[str]:
        return [v.name for v in self.graph.input if v.name not in self._initializers]

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of initialisers, and of the results of Constant nodes."""
        return (*self._initializers, *self._constants)

    def value(self, name: str, where: str) -> Value:
        """Raises GraphError, beginning with `where`, for a value of unknown size."""
        if (tensor := self._initializers.get(name)) is not None:
            return _sized(tensor.data_type, tuple(tensor.dims), f"{where}: {name!r}")
        if (stated := self._stated.get(name)) is not None:
            return _stated_value(stated, f"{where}: {name!r}")
        if self.outer is not None:
            return self.outer.value(name, where)
        raise GraphError(
            f"{where}: the shape of {name!r} is not in the file and does not follow from others; "
            "export the model with the shapes of its values (value_info)"
        )

    def whole_number(self, name: str) -> int | None:
        """The value of a constant that holds one number; None for all other names."""
        tensor = self._initializers.get(name)
        if tensor is None and name in self._constants:
            stated = self._constants[name].attribute
            tensor = next((one.t for one in stated if one.name == "value"), None)
        if tensor is None:
            return None if self.outer is None else self.outer.whole_number(name)
        array = _onnx().numpy_helper.to_array(tensor)
        return int(array.item()) if array.size == 1 else None


@dataclass(frozen=True)
class Model:
    """producer: the program that wrote the file; opset: the version of its operators."""

    main: Scope
    producer: str
    opset: int


def read_model(data: bytes, folder: Path, dimensions: Mapping[str, int]) -> Model:
    """folder: where external data would lie; dimensions: sizes of those that the file only names.
    Raises GraphError for data that are no model, and naming a value without a size."""
    model = _decoded(data)
    for tensor in model.graph.initializer:
        _lighten(tensor, folder)
    found = _fill(model.graph, dimensions)
    _refuse_open_inputs(model.graph)
    model = _with_shapes(model)
    if dimensions:  # they may name dimensions that only inference has found
        found |= _fill(model.graph, dimensions)
        model = _with_shapes(model)
    if unknown := [name for name in dimensions if name not in found]:
        raise GraphError(f"it has no dimension {unknown[0]!r} without a size")
    opset = max((s.version for s in model.opset_import if s.domain in OWN_DOMAINS), default=0)
    producer = f"{model.producer_name} {model.producer_version}".strip()
    return Model(Scope(model.graph), producer, opset)


def _decoded(data: bytes) -> Any:
    """The model, with the functions that the file defines inlined."""
    onnx = _onnx()
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise GraphError(f"no ONNX model: {error}") from error
    if not model.HasField("graph") or not model.graph.node:
        raise GraphError("no ONNX model: it has no graph, or one without nodes")
    _refuse_broken_texts(model.graph)
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise GraphError(f"initializer {name!r} is sparse, which this release does not read")
    if not model.functions:
        return model
    from onnx import inliner

    return inliner.inline_local_functions(model)


def _refuse_broken_texts(graph: Any) -> None:
    """Raises GraphError for a name that is no UTF-8, which protobuf gives as bytes."""
    named = (*graph.input, *graph.value_info, *graph.output, *graph.initializer)
    texts = [value.name for value in named]
    for node in graph.node:
        texts += [node.op_type, node.domain, node.name, *node.input, *node.output]
        for attribute in node.attribute:
            texts.append(attribute.name)
            if attribute.HasField("g"):
                _refuse_broken_texts(attribute.g)
    for text in texts:
        if not isinstance(text, str):
            raise GraphError(f"no ONNX model: the name {text!r} in it is no text")


def _lighten(tensor: Any, folder: Path) -> None:
    """Drops the values of a large initialiser; reads those of a small one that lie in a file."""
    places = _onnx().TensorProto
    size = _sized(tensor.data_type, tuple(tensor.dims), f"initializer {tensor.name!r}").bytes
    if size > SMALL_BYTES:
        for field in _VALUE_FIELDS:
            tensor.ClearField(field)
        tensor.data_location = places.EXTERNAL
    elif tensor.data_location == places.EXTERNAL:
        from onnx.external_data_helper import load_external_data_for_tensor

        try:
            load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:
            raise GraphError(f"initializer {tensor.name!r}: {_first_line(error)}") from error
        tensor.data_location = places.DEFAULT


def _fill(graph: Any, dimensions: Mapping[str, int]) -> set[str]:
    """Sets the sizes of named dimensions that have none; returns the names that were found."""
    found = set()
    for value in (*graph.input, *graph.value_info, *graph.output):
        for name, dimension in _open_dimensions(value):
            if name in dimensions:
                found.add(name)
                dimension.dim_value = dimensions[name]
    return found


def _open_dimensions(value: Any) -> Iterator[tuple[str, Any]]:
    """(name, dimension) for each dimension without a size; an unnamed one is called like `x.0`."""
    for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
        if not dimension.HasField("dim_value") or dimension.dim_value < 0:
            yield dimension.dim_param or f"{value.name}.{axis}", dimension


def _refuse_open_inputs(graph: Any) -> None:
    given = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        for name, _ in _open_dimensions(value):
            if value.name not in given:
                raise GraphError(
                    f"input {value.name!r}: its dimension {name!r} has no size; give it with "
                    f"--dimension {name}=SIZE"
                )


def _with_shapes(model: Any) -> Any:
    from onnx.shape_inference import InferenceError, infer_shapes

    try:
        return infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (InferenceError, ValueError, RuntimeError) as error:
        raise GraphError(f"its shapes cannot be inferred: {_first_line(error)}") from error


def _stated_value(stated: Any, where: str) -> Value:
    kind = stated.type.WhichOneof("value")
    if kind is None:
        raise GraphError(f"{where} has no type")
    if kind != "tensor_type":
        raise GraphError(
            f"{where} is a {kind.removesuffix('_type').replace('_', ' ')}, whose size is not known "
            "before the model runs"
        )
    tensor = stated.type.tensor_type
    if not tensor.HasField("shape"):
        raise GraphError(f"{where} has no shape in the file, and none follows from other shapes")
    for name, _ in _open_dimensions(stated):
        raise GraphError(
            f"{where}: its dimension {name!r} depends on values; give the size to plan for with "
            f"--dimension {name}=SIZE"
        )
    return _sized(tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim), where)


def _sized(element_type: int, shape: tuple[int, ...], where: str) -> Value:
    onnx = _onnx()
    types = onnx.TensorProto.DataType
    name = types.Name(element_type) if element_type in types.values() else str(element_type)
    if (bits := _PACKED_BITS.get(name)) is None:
        try:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
        except KeyError:
            raise GraphError(f"{where}: its elements are of no known type ({name})") from None
        if dtype.hasobject:
            raise GraphError(f"{where} holds texts, whose size is not known before the model runs")
        bits = dtype.itemsize * 8
    if any(size < 0 for size in shape):
        raise GraphError(f"{where}: its shape is {list(shape)}, with a negative size")
    return Value(name, shape, bits)


def _is_constant(node: Any) -> bool:
    return node.op_type == "Constant" and node.domain in OWN_DOMAINS


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _onnx() -> Any:
    """Raises GraphError where the package is not installed."""
    try:
        import onnx
    except ImportError:
        raise GraphError(
            "format onnx needs the package onnx (pip install 'placewire[onnx]')"
        ) from None
    return onnx
