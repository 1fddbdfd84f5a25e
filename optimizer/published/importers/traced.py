"""The calls and tensors of an execution trace, whichever file it comes from.

A trace is a tree of calls of one process: an operator calls others, and on a device they start
kernels. Every call names the tensors that it takes and returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.graph.rows import MOST_BYTES


@dataclass(frozen=True)
class TracedTensor:
    """tensor, storage: numbers of the trace, which may be reused once the memory was freed.
    offset: elements from the beginning of the storage."""

    tensor: int
    storage: int
    offset: int
    elements: int
    item_bytes: int
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return self.elements * self.item_bytes

    @property
    def end_bytes(self) -> int:
        """The byte at which the tensor ends in its storage."""
        return (self.offset + self.elements) * self.item_bytes


@dataclass(frozen=True)
class Call:
    """One node of a trace.

    parent     the id of the call that made it
    seconds    its time without the calls that it made; None where nothing was measured
    on_host    False for a kernel of a device
    schema     an operator's, like `aten::mm(Tensor self, Tensor mat2) -> Tensor`; "" for a label
    arguments  the tensors of each argument; reads: all of them; writes: those that the call changes
    gives      the tensors that the call returns
    where      the place in the file, like `nodes[3]`
    """

    id: int
    name: str
    parent: int | None
    seconds: float | None
    on_host: bool
    schema: str
    arguments: tuple[tuple[TracedTensor, ...], ...]
    gives: tuple[TracedTensor, ...]
    where: str

    @property
    def reads(self) -> Iterator[TracedTensor]:
        return (tensor for tensors in self.arguments for tensor in tensors)

    @property
    def writes(self) -> Iterator[TracedTensor]:
        """The arguments that the schema marks as changed, as in `Tensor(a!) self`."""
        for declared, tensors in zip(declared_arguments(self.schema), self.arguments, strict=False):
            if "!" in declared:
                yield from tensors


def declared_arguments(schema: str) -> list[str]:
    """`["Tensor(a!) self", "Scalar alpha=1"]` of an operator's schema, without a `*` among them."""
    start = schema.find("(")
    parts, depth = [""], 0
    for letter in schema[start + 1 :] if start >= 0 else "":
        depth += (letter in "([") - (letter in ")]")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip() not in ("", "*")]


def tensors_of(values: Any, shapes: Any, types: Any, where: str) -> list[tuple[TracedTensor, ...]]:
    """The tensors of each value, from the three lists of a node's inputs or outputs. Raises
    GraphError for other values than such lists."""
    for name, found in (("values", values), ("shapes", shapes), ("types", types)):
        if not isinstance(found, list):
            raise GraphError(f"{where}.{name} is {_shown(found)}, expected a list")
    if not len(values) == len(shapes) == len(types):
        raise GraphError(
            f"{where}: {len(values)} values, {len(shapes)} shapes and {len(types)} types"
        )
    return [
        tuple(_tensors(value, shape, kind, f"{where}.values[{k}]"))
        for k, (value, shape, kind) in enumerate(zip(values, shapes, types, strict=True))
    ]


def _tensors(value: Any, shape: Any, kind: Any, where: str) -> Iterator[TracedTensor]:
    if not isinstance(kind, str) or "Tensor" not in kind or "nullptr" in kind:
        return
    if kind.startswith("Tensor"):
        yield _tensor(value, shape, where)
        return
    if not (isinstance(value, list) and isinstance(shape, list) and len(value) == len(shape)):
        raise GraphError(f"{where} is {_shown(value)}, expected a list with as many shapes")
    kinds = kind[kind.find("[") + 1 : kind.rfind("]")].split(",")
    for k, (one, its) in enumerate(zip(value, shape, strict=True)):
        each = kinds[k] if k < len(kinds) else kinds[-1]
        yield from _tensors(one, its, each, f"{where}[{k}]")


def _tensor(value: Any, shape: Any, where: str) -> TracedTensor:
    """value: [tensor, storage, offset, elements, bytes of an element, device]."""
    numbers = value[:5] if isinstance(value, list | tuple) else []
    if len(numbers) < 5 or not all(_is_count(number) for number in numbers):
        raise GraphError(f"{where} is {_shown(value)}, expected five numbers and a device")
    tensor, storage, offset, elements, item = (int(number) for number in numbers)
    sizes = tuple(shape) if isinstance(shape, list | tuple) else ()
    if not all(_is_count(size) for size in sizes):
        raise GraphError(f"{where}: its shape is {_shown(shape)}, expected numbers")
    if (offset + max(elements, math.prod(sizes))) * item > MOST_BYTES:
        raise GraphError(f"{where}: has more than {MOST_BYTES} bytes")
    return TracedTensor(tensor, storage, offset, elements, item, sizes)


def outermost(calls: Sequence[Call]) -> dict[int, int]:
    """For each call that is part of an operator, by id, the outermost such operator. Raises
    GraphError where calls form a cycle."""
    by_id = {call.id: call for call in calls}
    top: dict[int, int | None] = {}
    for call in calls:
        path: dict[int, Call] = {}
        at: Call | None = call
        while at is not None and at.id not in top:
            if at.id in path:
                raise GraphError(f"{at.where}: calls itself, directly or through others")
            path[at.id] = at
            at = by_id.get(at.parent) if at.parent is not None and at.parent != at.id else None
        above = top[at.id] if at is not None else None
        for one in reversed(path.values()):
            if above is None and one.on_host and one.schema:
                above = one.id
            top[one.id] = above
    return {call: operator for call, operator in top.items() if operator is not None}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_BYTES


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
