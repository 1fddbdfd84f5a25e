"""Turns a trace whose calls name their tensors into rows of a graph, by what flows between
operators.

The outermost operators of the trace are the graph's operators; the calls that they make are part of
them. An operator depends on the last writers of its tensors in the order of the trace; that a
thread ran one operator after another is no dependency. An operator that changes a tensor in place
shares the device of the operator that allocated the tensor's memory, and comes after those that
read the tensor before. Memory that no operator in the trace allocated (parameters, their optimizer
state, a batch) was there before the trace, and is an operator of type `storage`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from placewire.optimizer.graph.operator_graph import GraphError, OperatorRow, TensorRow
from placewire.optimizer.published.importers.traced import Call, TracedTensor, outermost
from placewire.optimizer.published.importers.traced_costs import flops_of

HOST, DEVICE = "cpu", "accelerator"
_COMMUNICATION = ("c10d::", "record_param_comms", "nccl", "gloo:", "mpi:", "ucc:")


@dataclass(frozen=True)
class Flow:
    """kernels_left_out: how many kernels no operator started."""

    operators: list[OperatorRow]
    tensors: list[TensorRow]
    kernels_left_out: int


def flow_of(calls: Sequence[Call]) -> Flow:
    """Raises GraphError for communication with other processes, naming the call."""
    for call in calls:
        if call.name.startswith(_COMMUNICATION):
            raise GraphError(
                f"{call.where}: {call.name!r} communicates with other processes of the traced job, "
                "and what they compute is not in this file; trace a step of one process, which "
                "Placewire then distributes"
            )
    top = outermost(calls)
    seconds, left_out = _seconds(calls, top)
    reading = _Reading()
    for call in sorted(calls, key=lambda call: call.id):
        if top.get(call.id) == call.id and (call.gives or any(call.reads) or seconds.get(call.id)):
            reading.operator(call, seconds.get(call.id, {}))
    return Flow(reading.rows(), list(reading.tensors()), left_out)


def _seconds(
    calls: Sequence[Call], top: Mapping[int, int]
) -> tuple[dict[int, dict[str, float]], int]:
    """Returns the seconds of each operator with all calls that it made, and how many kernels no
    operator started. Where the trace has kernels, only their time counts."""
    kernels = [call for call in calls if not call.on_host]
    timed = kernels or [call for call in calls if call.seconds is not None]
    device = DEVICE if kernels else HOST
    total: dict[int, dict[str, float]] = {}
    if timed:
        total = {operator: {device: 0.0} for operator in top.values()}
    left_out = 0
    for call in timed:
        if call.id in top:
            total[top[call.id]][device] += call.seconds or 0.0
        else:
            left_out += not call.on_host
    return total, left_out


@dataclass
class _Storage:
    """owner: the operator that allocated it; writer: the last one that changed it; readers: those
    that have read it since."""

    owner: str
    writer: str
    readers: dict[str, None] = field(default_factory=dict)


class _Reading:
    """Takes the operators in the order of the trace and keeps who gave and read which tensor."""

    def __init__(self) -> None:
        self._rows: dict[str, OperatorRow] = {}
        self._standing: dict[str, int] = {}
        self._storages: dict[int, _Storage] = {}
        self._made: dict[int, tuple[str, int]] = {}  # tensor: (operator that gave it, storage)
        self._sent: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
        self._bytes: dict[tuple[str, int], int] = {}
        self._order: dict[str, dict[str, None]] = defaultdict(dict)
        self._position: dict[str, int] = {}
        self._together: dict[str, str] = {}

    def operator(self, call: Call, seconds: Mapping[str, float]) -> None:
        name = f"{call.name.rpartition('::')[2]}_{call.id}"
        self._position[name] = len(self._position)
        given = {tensor.storage for tensor in call.reads}
        for tensor in call.reads:
            self._read(name, tensor)
        for tensor in call.writes:
            self._write(name, tensor)
        fresh: dict[int, int] = {}
        for tensor in call.gives:
            if tensor.storage not in given:
                fresh[tensor.storage] = max(fresh.get(tensor.storage, 0), tensor.end_bytes)
                self._storages[tensor.storage] = _Storage(name, name)
            self._made[tensor.tensor] = (name, tensor.storage)
        traffic = {tensor.tensor: tensor.bytes for tensor in (*call.reads, *call.gives)}
        views = bool(call.gives) and not fresh and not any(call.writes)
        self._rows[name] = OperatorRow(
            id=name,
            type=call.name.replace("::", "."),  # `aten.mm`, as in captured graphs
            seconds=seconds,
            signature=" ".join(str(list(tensor.shape)) for tensor in call.gives),
            activation_bytes=sum(fresh.values()),
            flops=0 if views else flops_of(call),
            traffic_bytes=0 if views else sum(traffic.values()),
        )

    def rows(self) -> list[OperatorRow]:
        """The storages that were there before the trace come first."""
        device_types = next((tuple(row.seconds) for row in self._rows.values()), ())
        standing = [
            OperatorRow(
                id=name,
                type="storage",
                seconds=dict.fromkeys(device_types, 0.0),
                weight_bytes=size,
                colocation=self._group(name),
            )
            for name, size in self._standing.items()
        ]
        own = [replace(row, colocation=self._group(name)) for name, row in self._rows.items()]
        return standing + own

    def tensors(self) -> Iterator[TensorRow]:
        sent: dict[str, set[str]] = defaultdict(set)
        for (producer, tensor), readers in self._sent.items():
            sent[producer].update(readers)
            yield TensorRow(producer, tuple(readers), self._bytes[producer, tensor])
        for before, after in self._order.items():
            if waiting := [name for name in after if name not in sent[before]]:
                yield TensorRow(before, tuple(waiting), 0)

    def _read(self, name: str, tensor: TracedTensor) -> None:
        storage = self._storage(tensor)
        giver, of = self._made.get(tensor.tensor, (storage.writer, tensor.storage))
        if of != tensor.storage or self._at(storage.writer) > self._at(giver):
            giver = storage.writer
        if giver == name:
            return
        key = giver, tensor.tensor
        self._sent[key][name] = None
        self._bytes[key] = max(self._bytes.get(key, 0), tensor.bytes)
        storage.readers[name] = None

    def _write(self, name: str, tensor: TracedTensor) -> None:
        storage = self._storage(tensor)
        for reader in storage.readers:
            if reader != name:
                self._order[reader][name] = None
        storage.readers.clear()
        storage.writer = name
        self._together[self._root(name)] = self._root(storage.owner)

    def _storage(self, tensor: TracedTensor) -> _Storage:
        if tensor.storage not in self._storages:
            name = f"storage_{tensor.storage}"
            self._standing[name] = 0
            self._storages[tensor.storage] = _Storage(name, name)
        storage = self._storages[tensor.storage]
        if storage.owner in self._standing:
            self._standing[storage.owner] = max(self._standing[storage.owner], tensor.end_bytes)
        return storage

    def _at(self, name: str) -> int:
        """The operator's place in the trace; -1 for a storage that was there before."""
        return self._position.get(name, -1)

    def _root(self, name: str) -> str:
        self._together.setdefault(name, name)
        while self._together[name] != name:
            self._together[name] = self._together[self._together[name]]
            name = self._together[name]
        return name

    def _group(self, name: str) -> str | None:
        return self._root(name) if name in self._together else None
