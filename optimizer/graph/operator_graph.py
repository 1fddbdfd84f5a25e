"""The operator graph of one training step, held in arrays, so that 50,000 operators are cheap.

Indices throughout the optimizer: `i`, `j` operators (n), `e` tensors (m), `k` device types.

A *tensor* is sent once to a device, however many consumers it has there. A tensor of 0 bytes is an
ordering constraint: it is never sent, and its consumer waits for its producer without a transfer
(thesis, equation 3.5, first case).
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray, row_starts
from placewire.optimizer.graph.rows import COUNTS, GraphError, OperatorRow, TensorRow, shown

__all__ = ["GraphError", "OperatorGraph", "OperatorRow", "TensorRow", "build_graph", "tensor_rows"]

# The type of an operator that takes one item out of a tuple. The item's storage was allocated by
# the operator that makes the tuple, which the item reads as a tensor of 0 bytes.
TUPLE_ITEM = "getitem"
PARAMETER, BUFFER, UPDATE = "parameter", "buffer", "update"
ADDITION = "aten.add.Tensor"
# Of an addition of fewer bytes, starting a kernel is a large part.
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class OperatorGraph:
    """Operators and the tensors between them.

    ids, types            n strings each; an id is unique and stable: files and ranks use it
    signatures            n strings: shape, stride and dtype of the operator's output, and its
                          constants; `structure_hash` covers them; "" where unknown
    modules               n strings: the part of the model that the operator belongs to, like
                          `model.layers.3.attention`; "" where unknown; not in `structure_hash`
    device_types          k names; the columns of `seconds`
    seconds               float64[n, k], inf where an operator cannot run on that type
    weight_bytes          int64[n] held during the whole step: parameters with their optimizer
                          state, buffers, inputs
    activation_bytes      int64[n] storage that the operator newly allocates (0 for a view)
    workspace_bytes       int64[n] held only while the operator runs
    flops, traffic_bytes  int64[n] each: floating-point operations; memory read and written. Times
                          are modelled from them where nothing was measured; 0 where unknown
    colocation            int64[n] operators of one number share a device; -1: free
    micro_batch           int64[n] the micro-batch that an operator works for, from 0; -1 where it
                          serves several, or the step has only one; not in `structure_hash`
    tensor_producer       int64[m]
    tensor_bytes          int64[m]
    consumers_start       int64[m + 1], consumers int64[...]: CSR, the distinct consumers of tensor
                          e are consumers[consumers_start[e]:consumers_start[e + 1]]
    """

    ids: tuple[str, ...]
    types: tuple[str, ...]
    signatures: tuple[str, ...]
    modules: tuple[str, ...]
    device_types: tuple[str, ...]
    seconds: FloatArray
    weight_bytes: IntArray
    activation_bytes: IntArray
    workspace_bytes: IntArray
    flops: IntArray
    traffic_bytes: IntArray
    colocation: IntArray
    micro_batch: IntArray
    tensor_producer: IntArray
    tensor_bytes: IntArray
    consumers_start: IntArray
    consumers: IntArray
    name: str = "graph"
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, m = len(self.ids), len(self.tensor_producer)
        if len(set(self.ids)) != n:
            twice = Counter(self.ids).most_common(1)[0][0]
            raise GraphError(f"operator id {twice!r} occurs twice; ids must be unique")
        self._refuse_half_surrogates()
        shapes = dict.fromkeys((*COUNTS, "colocation", "micro_batch"), (n,))
        for name, expected in {**shapes, "seconds": (n, len(self.device_types))}.items():
            if (found := getattr(self, name).shape) != expected:
                raise GraphError(f"{name} has shape {found}, expected {expected}")
        if n and not (self.seconds >= 0).all():
            bad = int(np.argwhere(~(self.seconds >= 0))[0][0])
            raise GraphError(f"operator {self.ids[bad]!r} has a negative or undefined time")
        if self.consumers_start.shape != (m + 1,) or self.tensor_bytes.shape != (m,):
            raise GraphError("tensor arrays disagree in length")
        for array in (self.tensor_producer, self.consumers):
            if len(array) and (array.min() < 0 or array.max() >= n):
                raise GraphError("a tensor names an operator that does not exist")
        if len(self.topological_order) != n:
            inside = set(range(n)) - set(self.topological_order.tolist())
            raise GraphError(
                f"the graph has a cycle; {len(inside)} operators are on or behind it, "
                f"among them {self.ids[min(inside)]!r}"
            )

    def _refuse_half_surrogates(self) -> None:
        """JSON can hold half of a surrogate pair, which no file, database or hash can."""
        columns = {
            "id": self.ids, "type": self.types, "signature": self.signatures,
            "module": self.modules, "device_types": self.device_types,
        }  # fmt: skip
        for key, texts in columns.items():
            try:
                "".join(texts).encode()
            except UnicodeEncodeError:
                bad = next(k for k, text in enumerate(texts) if _is_no_utf8(text))
                place = key if key == "device_types" else f"operators[{bad}]: {key}"
                what = "text of whole UTF-8 characters"
                raise GraphError(f"{place} is {shown(texts[bad])}, expected {what}") from None

    @property
    def operator_count(self) -> int:
        return len(self.ids)

    @property
    def tensor_count(self) -> int:
        return len(self.tensor_producer)

    def tensor_consumers(self, tensor: int) -> IntArray:
        return self.consumers[self.consumers_start[tensor] : self.consumers_start[tensor + 1]]

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        return {identifier: index for index, identifier in enumerate(self.ids)}

    @cached_property
    def edges(self) -> tuple[IntArray, IntArray, IntArray]:
        """(source operator, target operator, tensor), one row per (tensor, consumer)."""
        tensor = np.repeat(np.arange(self.tensor_count), np.diff(self.consumers_start))
        return self.tensor_producer[tensor], self.consumers, tensor

    @cached_property
    def inputs(self) -> tuple[IntArray, IntArray]:
        """CSR by consumer: (start int64[n + 1], tensor int64[...])."""
        _, target, tensor = self.edges
        return row_starts(target, len(self.ids)), tensor[np.argsort(target, kind="stable")]

    @cached_property
    def outputs(self) -> tuple[IntArray, IntArray]:
        """CSR by producer: (start int64[n + 1], tensor int64[...])."""
        order = np.argsort(self.tensor_producer, kind="stable").astype(np.int64)
        return row_starts(self.tensor_producer, len(self.ids)), order

    def input_tensors(self, operator: int) -> IntArray:
        start, tensor = self.inputs
        return tensor[start[operator] : start[operator + 1]]

    def output_tensors(self, operator: int) -> IntArray:
        start, tensor = self.outputs
        return tensor[start[operator] : start[operator + 1]]

    @cached_property
    def copy_seconds_per_byte(self) -> FloatArray:
        """float64[k]: how long a device of each type takes to copy a byte of memory: two thirds of
        what its additions of large tensors take, because a copy moves two bytes where they move
        three. 0 where no large tensors are added; a step of micro-batches adds gradients."""
        size = np.zeros(self.operator_count)
        np.maximum.at(size, self.tensor_producer, self.tensor_bytes.astype(np.float64))
        large = (np.array(self.types, dtype=object) == ADDITION) & (size >= _LARGE_BYTES)
        took = self.seconds[large] / size[large][:, None]
        found = np.zeros(len(self.device_types))
        for k, column in enumerate(took.T):
            known = column[np.isfinite(column)]
            found[k] = 2 / 3 * float(np.median(known)) if len(known) else 0.0
        return found

    @cached_property
    def topological_order(self) -> IntArray:
        """Kahn's order, among the ready operators the smallest index first: the *recorded sort*.

        Shorter than n where the graph has a cycle (the constructor then refuses it).
        """
        source, target, _ = self.edges
        waiting = np.bincount(target, minlength=len(self.ids)).tolist()
        by_source: list[list[int]] = [[] for _ in self.ids]
        for a, b in zip(source.tolist(), target.tolist(), strict=True):
            by_source[a].append(b)
        ready = [i for i, count in enumerate(waiting) if count == 0]
        order: list[int] = []
        while ready:
            i = heapq.heappop(ready)
            order.append(i)
            for j in by_source[i]:
                waiting[j] -= 1
                if waiting[j] == 0:
                    heapq.heappush(ready, j)
        return np.array(order, dtype=np.int64)

    @cached_property
    def position(self) -> IntArray:
        """int64[n]: where each operator stands in topological_order."""
        position = np.empty(self.operator_count, dtype=np.int64)
        position[self.topological_order] = np.arange(self.operator_count)
        return position

    @cached_property
    def structure_hash(self) -> str:
        """Covers operators, signatures and edges, but no costs; the ranks of a job compare it."""
        digest = hashlib.sha256()
        for row in zip(self.ids, self.types, self.signatures, strict=True):
            digest.update("\x1f".join(row).encode() + b"\x1e")
        tensors = self.tensor_producer, self.tensor_bytes, self.consumers_start, self.consumers
        for array in (self.colocation, *tensors):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return digest.hexdigest()

    @cached_property
    def profile_digest(self) -> str:
        """Covers costs and memory: with the structure, all that a kept placement depends on."""
        digest = hashlib.sha256("\x1f".join(self.device_types).encode())
        digest.update(np.ascontiguousarray(self.seconds, dtype="<f8").tobytes())
        for array in (self.weight_bytes, self.activation_bytes, self.workspace_bytes):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return digest.hexdigest()

    def with_seconds(self, seconds_by_type: Mapping[str, FloatArray]) -> OperatorGraph:
        """The same graph with these times, float64[n] per device type."""
        names = tuple(seconds_by_type)
        columns = [np.asarray(seconds_by_type[name], dtype=np.float64) for name in names]
        seconds = np.stack(columns, axis=1) if columns else np.zeros((self.operator_count, 0))
        return replace(self, device_types=names, seconds=seconds)


def _is_no_utf8(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def build_graph(
    operators: Sequence[OperatorRow],
    tensors: Sequence[TensorRow],
    *,
    name: str = "graph",
    device_types: Sequence[str] | None = None,
    notes: Mapping[str, Any] | None = None,
) -> OperatorGraph:
    """A graph from rows. An operator with no time for a device type cannot run there (inf).

    Raises GraphError where a tensor names an unknown operator, an id occurs twice, or on a cycle.
    """
    if device_types is None:
        device_types = list(dict.fromkeys(t for row in operators for t in row.seconds))
    index = {row.id: i for i, row in enumerate(operators)}
    groups: dict[str, int] = {}
    colocation = [
        -1 if row.colocation is None else groups.setdefault(row.colocation, len(groups))
        for row in operators
    ]
    consumers: list[int] = []
    start = [0]
    for position, tensor in enumerate(tensors):
        for end in (tensor.producer, *tensor.consumers):
            if end not in index:
                raise GraphError(f"tensors[{position}] names {end!r}, which is no operator")
        if tensor.bytes < 0:
            raise GraphError(f"tensors[{position}] of {tensor.producer!r} has negative bytes")
        consumers.extend(index[c] for c in dict.fromkeys(tensor.consumers))
        start.append(len(consumers))

    def integers(values: Sequence[int]) -> IntArray:
        return np.array(values, dtype=np.int64)

    seconds = np.array(
        [[row.seconds.get(t, np.inf) for t in device_types] for row in operators], dtype=np.float64
    ).reshape(len(operators), len(device_types))
    return OperatorGraph(
        ids=tuple(row.id for row in operators),
        types=tuple(row.type for row in operators),
        signatures=tuple(row.signature for row in operators),
        modules=tuple(row.module for row in operators),
        device_types=tuple(device_types),
        seconds=seconds,
        weight_bytes=integers([row.weight_bytes for row in operators]),
        activation_bytes=integers([row.activation_bytes for row in operators]),
        workspace_bytes=integers([row.workspace_bytes for row in operators]),
        flops=integers([row.flops for row in operators]),
        traffic_bytes=integers([row.traffic_bytes for row in operators]),
        colocation=integers(colocation),
        micro_batch=integers(
            [-1 if row.micro_batch is None else row.micro_batch for row in operators]
        ),
        tensor_producer=integers([index[t.producer] for t in tensors]),
        tensor_bytes=integers([t.bytes for t in tensors]),
        consumers_start=integers(start),
        consumers=integers(consumers),
        name=name,
        notes=dict(notes or {}),
    )


def tensor_rows(graph: OperatorGraph) -> Iterator[TensorRow]:
    for e in range(graph.tensor_count):
        yield TensorRow(
            producer=graph.ids[graph.tensor_producer[e]],
            consumers=tuple(graph.ids[c] for c in graph.tensor_consumers(e)),
            bytes=int(graph.tensor_bytes[e]),
        )
