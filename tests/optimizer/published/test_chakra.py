"""Execution traces as graphs: the graph has the trace's flow, and damaged files are refused."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ExecutionTraceObserver

from placewire.optimizer.check.check import check
from placewire.optimizer.cli import main
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph, tensor_rows
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.profile.modelled import with_modelled_seconds
from placewire.optimizer.published.importers.chakra import read_chakra
from placewire.optimizer.published.importers.chakra_messages import message_kinds
from placewire.optimizer.published.importers.traced import declared_arguments
from tests.optimizer.cases import cluster

Json = dict[str, Any]


def read(document: Json) -> OperatorGraph:
    return read_chakra(json.dumps(document).encode()).graph


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A step of training, as torch writes it: convolution, batch norm, ReLU in place, a linear
    layer, their backward pass and SGD with momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    x, labels = torch.randn(2, 3, 8, 8), torch.randint(0, 5, (2,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    step()
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    observer = ExecutionTraceObserver().register_callback(str(file))
    observer.start()
    step()
    observer.stop()
    observer.unregister_callback()
    return file.read_bytes()


def only(graph: OperatorGraph, kind: str) -> int:
    (found,) = [i for i, one in enumerate(graph.types) if one == kind]
    return found


def ancestors(graph: OperatorGraph, operator: int) -> set[int]:
    above: dict[int, set[int]] = {i: set() for i in range(graph.operator_count)}
    for a, b, _ in zip(*graph.edges, strict=True):
        above[int(b)].add(int(a))
    found, waiting = set[int](), [operator]
    while waiting:
        for i in above[waiting.pop()] - found:
            found.add(i)
            waiting.append(i)
    return found


def test_a_step_that_torch_traced_flows_from_batch_to_updates(observed: bytes) -> None:
    graph = read_chakra(observed).graph
    assert graph.device_types == () and graph.notes["kernels_left_out"] == 0
    convolution, linear = only(graph, "aten.conv2d"), only(graph, "aten.linear")
    loss = only(graph, "aten.cross_entropy_loss")
    assert convolution in ancestors(graph, linear) and linear in ancestors(graph, loss)
    back = only(graph, "aten.convolution_backward")
    assert {convolution, linear, loss} <= ancestors(graph, back)
    assert graph.flops[convolution] == 2 * (2 * 4 * 36) * 27
    assert graph.flops[linear] == 2 * (2 * 5) * 144
    products = 2 if len(graph.output_tensors(back)) > 1 else 1
    assert graph.flops[back] in {products * 2 * (2 * 4 * 36) * 27, 2 * (2 * 4 * 36) * 27}
    # Each parameter and its momentum were there before the trace, on the device of their update.
    updates = [i for i, one in enumerate(graph.types) if one == "aten.add_"]
    weights = [
        i for i, one in enumerate(graph.types) if one == "storage" and graph.colocation[i] >= 0
    ]
    assert len(updates) >= 6
    assert {graph.colocation[i] for i in updates} <= {graph.colocation[i] for i in weights}
    assert sum(graph.weight_bytes[weights].tolist()) >= 4 * 2 * (4 * 27 + 4 + 4 + 4 + 144 * 5 + 5)
    # A parameter is read before it is changed.
    for update in updates:
        assert loss in ancestors(graph, update) or graph.flops[update] <= 1


def test_a_traced_step_is_modelled_placed_and_checked(observed: bytes, tmp_path: Path) -> None:
    file, out = tmp_path / "trace.json.gz", tmp_path / "graph.json"
    file.write_bytes(gzip.compress(observed))
    assert main(["import", "--format", "chakra", str(file), "--out", str(out)]) == 0
    graph = with_modelled_seconds(load_graph(out), ["cpu-core"])
    problem = Problem(graph, cluster(2, types=["cpu-core"] * 2))
    assert check(graph, place(problem, "heft", SolveSettings())) == ()


FLOAT = "Tensor(float)"


def tensor(number: int, storage: int, *shape: int) -> tuple[list[Any], list[int], str]:
    return [number, storage, 0, int(np.prod(shape)), 4, "cpu"], list(shape), FLOAT


def side(tensors: Sequence[tuple[list[Any], list[int], str]]) -> Json:
    values, shapes, types = ([one[k] for one in tensors] for k in range(3))
    return {"values": values, "shapes": shapes, "types": types}


def call(
    number: int, name: str, parent: int, schema: str = "", reads: Sequence[Any] = (),
    gives: Sequence[Any] = (), **more: Any,
) -> Json:  # fmt: skip
    attributes = [{"name": "op_schema", "type": "string", "value": schema}]
    return {
        "id": number, "name": name, "ctrl_deps": parent, "inputs": side(reads),
        "outputs": side(gives), "attrs": attributes, **more,
    }  # fmt: skip


X, W, H, Y = tensor(1, 1, 4, 8), tensor(2, 2, 8, 6), tensor(3, 3, 4, 6), tensor(4, 4, 4, 6)
MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
RELU = "aten::relu(Tensor self) -> Tensor"
ADD = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
TRACE: Json = {
    "schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "now", "start_ts": 0, "finish_ts": 1,
    "nodes": [
        call(1, "[pytorch|profiler|execution_trace|process]", 1),
        call(2, "[pytorch|profiler|execution_trace|thread]", 1),
        call(3, "aten::matmul", 2, "aten::matmul(Tensor self, Tensor other) -> Tensor", [X, W], [H],
             exclusive_dur=10.0),
        call(4, "aten::mm", 3, MM, [X, W], [H], exclusive_dur=500),
        call(5, "aten::relu", 2, RELU, [H], [Y], exclusive_dur=20.0),
        call(6, "aten::add_", 2, ADD, [W, tensor(5, 5, 8, 6)], [W], exclusive_dur=30.0),
        call(7, "aten::mm", 2, MM, [X, W], [tensor(3, 3, 4, 6)], exclusive_dur=40.0),
    ],
}  # fmt: skip


def test_what_operators_call_is_part_of_them_and_their_times_add_up() -> None:
    graph = read(TRACE)
    assert graph.ids == (
        "storage_1", "storage_2", "storage_5", "matmul_3", "relu_5", "add__6", "mm_7",
    )  # fmt: skip
    assert graph.device_types == ("cpu",)
    assert graph.seconds[:, 0].tolist() == pytest.approx([0, 0, 0, 510e-6, 20e-6, 30e-6, 40e-6])
    assert graph.weight_bytes.tolist() == [128, 192, 192, 0, 0, 0, 0]
    assert graph.activation_bytes.tolist() == [0, 0, 0, 96, 96, 0, 96]
    assert graph.flops[3] == 2 * 24 * 8


def test_what_is_changed_in_place_is_read_from_who_changed_it_last() -> None:
    graph = read(TRACE)
    rows = {(row.producer, row.consumers): row.bytes for row in tensor_rows(graph)}
    assert rows["storage_2", ("matmul_3", "add__6")] == 192
    assert rows["add__6", ("mm_7",)] == 192, "changed since"
    assert rows["matmul_3", ("add__6",)] == 0, "who read it before comes before"
    assert rows["matmul_3", ("relu_5",)] == 96
    assert ("mm_7", ("relu_5",)) not in rows, "a number is given again when its memory was freed"
    assert graph.colocation[1] == graph.colocation[5] >= 0
    assert graph.colocation[0] == -1


def test_kernels_are_what_counts_where_there_are_any() -> None:
    document = copy.deepcopy(TRACE)
    document["nodes"] += [
        call(8, "sgemm", 4, cat="kernel", exclusive_dur=70, stream=7),
        call(9, "copy", 4, cat="gpu_memcpy", exclusive_dur=5, stream=7),
        call(10, "lost", 2, cat="kernel", exclusive_dur=9, stream=7),
    ]
    graph = read(document)
    assert graph.device_types == ("accelerator",)
    seconds = dict(zip(graph.ids, graph.seconds[:, 0].tolist(), strict=True))
    assert seconds["matmul_3"] == pytest.approx(75e-6)
    assert seconds["relu_5"] == 0
    assert graph.notes["kernels_left_out"] == 1


def change(path: tuple[Any, ...], value: Any) -> Json:
    document = copy.deepcopy(TRACE)
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return document


ALL_REDUCE = call(8, "c10d::allreduce_", 2, "c10d::allreduce_(Tensor[] tensors) -> Tensor[]")
MISTAKES = [
    (change(("nodes", 4, "id"), 4), "nodes[4]: id 4 is also that of nodes[3]"),
    (change(("nodes", 4, "id"), "4"), "nodes[4]: id is '4', expected a whole number"),
    (change(("nodes", 2, "inputs"), 5), "nodes[2]: inputs is no object"),
    (change(("nodes", 2, "inputs", "values", 0), 5), "nodes[2]: inputs.values[0] is 5, expected f"),
    (change(("nodes", 2, "inputs", "shapes"), []), "nodes[2]: inputs: 2 values, 0 shapes and 2 ty"),
    (change(("nodes", 2, "exclusive_dur"), -1), "nodes[2]: exclusive_dur is -1: it is negative"),
    (change(("nodes", 1, "ctrl_deps"), 4) | {}, None),
    (change(("schema",), "1.0.1"), "schema is '1.0.1'; this release reads"),
    (change(("nodes",), []), "it has no operator"),
    (change(("nodes", 6), ALL_REDUCE), "nodes[6]: 'c10d::allreduce_' communicates with other proc"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), MISTAKES)
def test_a_mistake_names_file_and_node(
    document: Json, message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if message is None:
        document["nodes"][2]["ctrl_deps"] = 2
        document["nodes"][3]["ctrl_deps"] = 2
        message = "calls itself, directly or through others"
    file, out = tmp_path / "in.json", tmp_path / "out.json"
    file.write_text(json.dumps(document))
    assert main(["import", "--format", "chakra", str(file), "--out", str(out)]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ") and said.count("\n") == 1
    assert message in said
    assert not out.exists()


def test_arguments_of_a_schema() -> None:
    schema = (
        "aten::f.x(Tensor(a!) self, Tensor(b!)[] out, int[2] k=[1, 1], *, Scalar? s=None) -> ()"
    )
    assert declared_arguments(schema) == [
        "Tensor(a!) self", "Tensor(b!)[] out", "int[2] k=[1, 1]", "Scalar? s=None",
    ]  # fmt: skip
    assert declared_arguments("") == []


# Protobuf

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7


def node(
    number: int, kind: int = COMPUTE, after: Sequence[int] = (), micros: int = 0, name: str = "n",
    **attributes: Any,
) -> Any:  # fmt: skip
    made = message_kinds()["Node"](
        id=number, name=name, type=kind, data_deps=after, duration_micros=micros
    )
    for key, value in attributes.items():
        field = {bool: "bool", int: "int64", str: "string"}[type(value)]
        made.attr.add(name=key, **{field: value})
    return made


def file_of(*nodes: Any, version: str = "0.0.4") -> bytes:
    messages = [message_kinds()["Metadata"](version=version), *nodes]
    return b"".join(_behind_its_length(one.SerializeToString()) for one in messages)


def _behind_its_length(body: bytes) -> bytes:
    size, length = len(body), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return length + bytes([size]) + body


def test_nodes_without_tensors_depend_as_the_file_says() -> None:
    graph = read_chakra(
        file_of(
            node(0, 1, name="metadata"),
            node(1, micros=100, is_cpu_op=False, tensor_size=4000),
            node(2, micros=50, after=[1, 0], is_cpu_op=False),
            node(3, micros=7, after=[1, 2], is_cpu_op=True),
        )
    ).graph
    assert graph.ids == ("n_1", "n_2", "n_3") and graph.types[0] == "compute"
    assert graph.device_types == ("accelerator", "cpu")
    assert graph.seconds.tolist() == [[1e-4, np.inf], [5e-5, np.inf], [np.inf, 7e-6]]
    rows = {row.producer: (row.consumers, row.bytes) for row in tensor_rows(graph)}
    assert rows == {"n_1": (("n_2", "n_3"), 4000), "n_2": (("n_3",), 0)}


def test_counts_stand_where_nothing_was_timed() -> None:
    graph = read_chakra(
        file_of(node(1, num_ops=10**9, tensor_size=10**6), node(2, after=[1]))
    ).graph
    assert graph.device_types == ()
    assert graph.flops.tolist() == [10**9, 0] and graph.traffic_bytes.tolist() == [10**6, 0]


def test_a_send_with_its_receive_is_a_transfer() -> None:
    ends: dict[str, Any] = {"comm_src": 0, "comm_dst": 1, "comm_tag": 3, "comm_size": 5000}
    nodes = [
        node(1, micros=9), node(2, SEND, after=[1], **ends), node(3, RECEIVE, **ends),
        node(4, micros=9, after=[3]),
    ]  # fmt: skip
    graph = read_chakra(file_of(*nodes)).graph
    rows = [(row.producer, row.consumers, row.bytes) for row in tensor_rows(graph)]
    assert ("n_2", ("n_3",), 5000) in rows and len(rows) == 3
    for alone in (nodes[:2], nodes[2:]):
        with pytest.raises(GraphError, match=r"node [23] at byte \d+: 'n' communicates with other"):
            read_chakra(file_of(*alone))


def test_what_torch_traced_is_the_same_graph_as_protobuf() -> None:
    nodes = []
    for row in TRACE["nodes"]:
        made = node(
            row["id"], micros=round(row.get("exclusive_dur", 0)), name=row["name"],
            op_schema=row["attrs"][0]["value"], is_cpu_op=True,
        )  # fmt: skip
        made.ctrl_deps.append(row["ctrl_deps"])
        for key in ("inputs", "outputs"):
            for name, value in row[key].items():
                setattr(getattr(made, key), name, str(value))
        nodes.append(made)
    graph = read_chakra(file_of(*nodes, version="1.1.1-chakra.0.0.4")).graph
    assert graph.structure_hash == read(TRACE).structure_hash
    assert graph.profile_digest == read(TRACE).profile_digest
    with pytest.raises(GraphError, match=r"'n' \(ALL_REDUCE\) communicates with other processes"):
        read_chakra(file_of(*nodes, node(99, COLLECTIVE, comm_type=0)))


WHOLE = file_of(node(1, micros=5), node(2, after=[1], micros=5))
DAMAGED = [
    (b"", "no Chakra trace: it has no nodes"),
    (WHOLE[:-3], r"byte \d+: a message of \d+ bytes begins here, and the file ends after"),
    (WHOLE + b"\xff\xff\xff\xff\xff\xff", "no message's length is here"),
    (WHOLE + b"\x03\x0a\x7f\x00", "no message of a Chakra trace"),
    (file_of(node(1, micros=5), version="0.0.1"), "its schema is '0.0.1'; this release reads"),
    (file_of(node(1, 8, micros=5)), "type 8 is not one of an operator"),
    (file_of(node(1), node(2)), "none of its nodes has a duration_micros, num_ops or tensor_size"),
    (file_of(node(1, micros=1), node(1, micros=2)), "two of its nodes have the same id"),
    (file_of(node(1, micros=1, after=[1])), "node 1 at byte .*: data_deps names the node itself"),
    (file_of(node(1, micros=1, after=[2]), node(2, micros=1, after=[1])), "the graph has a cycle"),
    (file_of(node(1, COLLECTIVE, comm_type=6)), r"\(ALL_TO_ALL\) communicates with other"),
    (b'{"schema": ', "no JSON document"),
]


@pytest.mark.parametrize(("data", "message"), DAMAGED)
def test_damaged_files_are_refused_with_the_place(data: bytes, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        read_chakra(data)


def test_random_damage_ends_nothing(observed: bytes) -> None:
    generator = np.random.default_rng(3)
    for whole in (WHOLE, json.dumps(TRACE).encode()):
        for _ in range(300):
            data = bytearray(whole)
            for place_ in generator.integers(0, len(data), 2):
                data[place_] = int(generator.integers(0, 256))
            try:
                read_chakra(bytes(data))
            except GraphError as error:
                assert str(error)
