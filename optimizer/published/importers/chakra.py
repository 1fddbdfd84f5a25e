"""Reads execution traces of MLCommons Chakra, as PyTorch writes them.

A file is an `.et` (protobuf, schema 0.0.4), or the JSON that torch.profiler's
ExecutionTraceObserver and chakra_trace_link write, and is the trace of one process.

Where nodes name their tensors, as all nodes from PyTorch do, the graph is what flows between the
outermost operators (traced_flow.py). Times are those of kernels, as device type `accelerator`, or
of the host's operators, as `cpu`. A trace that the observer alone wrote has no times: its operators
get flops and traffic_bytes, from which `optimizer profile GRAPH --device NAME` models the times.

Where no node names a tensor, as in files made for simulators, nodes are operators that depend on
each other as the file says (`_by_dependency`).
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

from placewire.optimizer.graph.importer import Imported
from placewire.optimizer.graph.operator_graph import GraphError, OperatorRow, TensorRow, build_graph
from placewire.optimizer.published.importers.chakra_messages import (
    VERSION,
    attributes,
    read_messages,
)
from placewire.optimizer.published.importers.foreign_rows import Row, number, rows
from placewire.optimizer.published.importers.traced import Call, tensors_of
from placewire.optimizer.published.importers.traced_flow import DEVICE, HOST, flow_of

_METADATA, _LOAD, _STORE, _COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = range(1, 8)
_TYPES = {_LOAD: "load", _STORE: "store", _COMPUTE: "compute", _SEND: "send", _RECEIVE: "receive"}
_COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL",
    "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip


def read_chakra(data: bytes, name: str = "chakra") -> Imported:
    """Raises GraphError naming the node, or the byte at which the file is no trace."""
    document = _json(data)
    if document is not None:
        return _flow(_calls_of_json(document), name)
    nodes = list(read_messages(data))
    if not nodes:
        raise GraphError("no Chakra trace: it has no nodes")
    calls = [_call_of_message(where, node) for where, node in nodes]
    if any(call.gives for call in calls):
        for where, node in nodes:
            if node.type in (_SEND, _RECEIVE, _COLLECTIVE):
                raise GraphError(f"{where}: {_communication(node)}; trace a step of one process")
        return _flow(calls, name)
    return _by_dependency(nodes, name)


def _flow(calls: Sequence[Call], name: str) -> Imported:
    seen: dict[int, Call] = {}
    for call in calls:
        if call.id in seen:
            raise GraphError(f"{call.where}: id {call.id} is also that of {seen[call.id].where}")
        seen[call.id] = call
    flow = flow_of(calls)
    if not flow.operators:
        raise GraphError("it has no operator: no node with a schema names tensors")
    notes = {"format": "chakra", "kernels_left_out": flow.kernels_left_out}
    return Imported(build_graph(flow.operators, flow.tensors, name=name, notes=notes))


def _json(data: bytes) -> Any:
    """None where the file is no JSON. The length of a protobuf message may look like a brace."""
    if data.lstrip()[:1] != b"{":
        return None
    try:
        return json.loads(data)
    except RecursionError:
        raise GraphError("no JSON document: it is nested too deeply") from None
    except ValueError as error:
        if data.lstrip()[:20].lstrip(b"{ \r\n\t").startswith(b'"'):
            raise GraphError(f"no JSON document: {error}") from error
        return None


def _calls_of_json(document: Any) -> list[Call]:
    nodes = rows(document, "nodes")
    schema = document.get("schema")
    if not isinstance(schema, str) or VERSION not in schema:
        raise GraphError(f"schema is {schema!r}; this release reads 1.….…-chakra.{VERSION}")
    return [_call_of_row(row) for row in nodes]


def _call_of_row(row: Row) -> Call:
    parent = row.value("ctrl_deps")
    attrs = row.values.get("attrs", [])
    if not isinstance(attrs, list) or not all(isinstance(one, dict) for one in attrs):
        raise GraphError(f"{row.where}: attrs is no list of objects")
    stated = {str(one.get("name")): one.get("value") for one in attrs}
    took = row.values.get("exclusive_dur")
    return Call(
        id=_whole(row.value("id"), f"{row.where}: id"),
        name=row.text("name"),
        parent=None if parent is None else _whole(parent, f"{row.where}: ctrl_deps"),
        seconds=None if took is None else number(took, f"{row.where}: exclusive_dur") / 1e6,
        on_host=row.values.get("cat") is None,
        schema=str(stated.get("op_schema") or ""),
        arguments=tuple(_side(row, "inputs")),
        gives=tuple(tensor for tensors in _side(row, "outputs") for tensor in tensors),
        where=row.where,
    )


def _side(row: Row, key: str) -> list[Any]:
    side = row.value(key)
    if not isinstance(side, dict):
        raise GraphError(f"{row.where}: {key} is no object")
    values, shapes, types = (side.get(name, []) for name in ("values", "shapes", "types"))
    return tensors_of(values, shapes, types, f"{row.where}: {key}")


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise GraphError(f"{where} is {value!r}, expected a whole number")
    return value


def _call_of_message(where: str, node: Any) -> Call:
    stated = attributes(node)
    return Call(
        id=node.id,
        name=node.name,
        parent=node.ctrl_deps[0] if node.ctrl_deps else None,
        seconds=node.duration_micros / 1e6,
        on_host=bool(stated.get("is_cpu_op", True)),
        schema=str(stated.get("op_schema", "")),
        arguments=tuple(_literals(node.inputs, f"{where}: inputs")),
        gives=tuple(t for some in _literals(node.outputs, f"{where}: outputs") for t in some),
        where=where,
    )


def _literals(side: Any, where: str) -> list[Any]:
    """The tensors of each value, from the side's three lists, which are written as texts."""
    found = []
    for name in ("values", "shapes", "types"):
        text = getattr(side, name)
        try:
            found.append(ast.literal_eval(text) if text else [])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise GraphError(f"{where}.{name} is no list: {text[:60]!r}") from None
    if all(not isinstance(value, list) or not value for value in found):
        return []
    values, shapes, types = found
    return tensors_of(values, shapes, types, where)


def _communication(node: Any) -> str:
    kind = attributes(node).get("comm_type")
    what = ""
    if node.type == _COLLECTIVE and isinstance(kind, int) and 0 <= kind < len(_COLLECTIVES):
        what = f" ({_COLLECTIVES[kind]})"
    return (
        f"{node.name!r}{what} communicates with other processes of the traced job, and what they "
        "compute is not in this file"
    )


def _by_dependency(nodes: Sequence[tuple[str, Any]], name: str) -> Imported:
    """Every node but metadata is an operator. A send and its receive in the file are a transfer of
    comm_size bytes. Others depend in order only, unless their producer states the bytes of its
    tensor (tensor_size)."""
    wanted = {node.id: (where, node) for where, node in nodes if node.type != _METADATA}
    if len({node.id for _, node in nodes}) != len(nodes):
        raise GraphError("two of its nodes have the same id")
    timed = any(node.duration_micros for _, node in wanted.values())
    operators = {i: _operator(where, node, timed) for i, (where, node) in wanted.items()}
    if not timed and not any(row.flops or row.traffic_bytes for row in operators.values()):
        raise GraphError("none of its nodes has a duration_micros, num_ops or tensor_size")
    tensors = [*_dependencies(wanted, operators), *_transfers(wanted, operators)]
    notes = {"format": "chakra", "kernels_left_out": 0}
    return Imported(build_graph(list(operators.values()), tensors, name=name, notes=notes))


def _operator(where: str, node: Any, timed: bool) -> OperatorRow:
    if node.type == _COLLECTIVE:
        raise GraphError(f"{where}: {_communication(node)}")
    if node.type not in _TYPES:
        raise GraphError(f"{where}: type {node.type} is not one of an operator")
    stated = attributes(node)
    device = HOST if stated.get("is_cpu_op", True) else DEVICE
    size = _count(stated, "tensor_size", where)
    moves = node.type in (_SEND, _RECEIVE)
    return OperatorRow(
        id=f"{node.name or _TYPES[node.type]}_{node.id}",
        type=_TYPES[node.type],
        seconds={device: node.duration_micros / 1e6} if timed else {},
        activation_bytes=0 if moves else size,
        flops=_count(stated, "num_ops", where),
        traffic_bytes=0 if moves else size,
    )


def _count(stated: dict[str, Any], key: str, where: str) -> int:
    return round(number(stated.get(key, 0), f"{where}: {key}"))


def _dependencies(
    wanted: dict[int, tuple[str, Any]], operators: dict[int, OperatorRow]
) -> list[TensorRow]:
    """A tensor from each node to those that wait for its data, of 0 bytes to those that wait in
    order."""
    data: dict[int, list[str]] = {}
    order: dict[int, list[str]] = {}
    for where, node in wanted.values():
        for kind, before in (("data_deps", data), ("ctrl_deps", order)):
            for one in getattr(node, kind):
                if one == node.id:
                    raise GraphError(f"{where}: {kind} names the node itself")
                if one in wanted:  # a node of metadata is not, nor one that was cut away
                    before.setdefault(one, []).append(operators[node.id].id)
    bytes_given = {i: row.activation_bytes for i, row in operators.items()}
    return [
        *(TensorRow(operators[i].id, tuple(names), bytes_given[i]) for i, names in data.items()),
        *(TensorRow(operators[i].id, tuple(names), 0) for i, names in order.items()),
    ]


def _transfers(
    wanted: dict[int, tuple[str, Any]], operators: dict[int, OperatorRow]
) -> list[TensorRow]:
    """A tensor from each send to its receive. Raises GraphError where either lacks the other."""
    receives: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for _, node in wanted.values():
        if node.type == _RECEIVE:
            receives[_ends(node)].append(node.id)
    found = []
    for where, node in wanted.values():
        if node.type == _SEND:
            waiting = receives[_ends(node)]
            if not waiting:
                raise GraphError(f"{where}: {_communication(node)}")
            size = _count(attributes(node), "comm_size", where)
            receive = operators[waiting.pop(0)]
            found.append(TensorRow(operators[node.id].id, (receive.id,), size))
    for left in chain.from_iterable(receives.values()):
        where, node = wanted[left]
        raise GraphError(f"{where}: {_communication(node)}")
    return found


def _ends(node: Any) -> tuple[Any, ...]:
    stated = attributes(node)
    return tuple(stated.get(key) for key in ("comm_src", "comm_dst", "comm_tag"))
