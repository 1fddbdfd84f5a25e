"""Graph files: what is malformed is refused in one line that names the file and the place."""

from __future__ import annotations

import copy
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import (
    graph_from_json,
    graph_to_json,
    load_graph,
    save_graph,
)
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.placement import PlacementError, load_placement
from tests.optimizer.cases import graph

MADE = graph({"A": 1.0, "B": 2.0}, [("A", ["B"], 7)], weight_bytes={"B": 3})
DOCUMENT = graph_to_json(MADE)


def changed(path: tuple, value: object) -> dict:
    document = copy.deepcopy(DOCUMENT)
    document["structure_hash"] = None
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def test_modules_come_back_and_are_no_structure(tmp_path):
    made = replace(MADE, modules=("model.a", ""))
    save_graph(made, tmp_path / "graph.json")
    loaded = load_graph(tmp_path / "graph.json")
    assert loaded.modules == made.modules
    assert loaded.structure_hash == MADE.structure_hash
    assert [set(row) & {"module"} for row in graph_to_json(loaded)["operators"]] == [
        {"module"},
        set(),
    ]


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_a_saved_graph_comes_back(tmp_path, name):
    save_graph(MADE, tmp_path / name)
    loaded = load_graph(tmp_path / name)
    assert graph_to_json(loaded) == DOCUMENT
    assert (loaded.structure_hash, loaded.profile_digest) == (
        MADE.structure_hash, MADE.profile_digest,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("structure_hash",), 5, "structure_hash is 5, expected a text"),
        (("name",), 5, "name is 5, expected a text"),
        (("notes",), 5, "notes is 5, expected an object"),
        (("notes", "loss"), "Z", "notes.loss is 'Z', expected the id of an operator"),
        (("notes", "loss"), ["A"], "notes.loss is ['A'], expected the id of an operator"),
        (("notes", "inputs"), 5, "notes.inputs is 5, expected a list of operators"),
        (("notes", "inputs"), ["A", "Z"], "notes.inputs[1] is 'Z', expected the id of an operator"),
        (("notes", "outputs"), ["Z"], "notes.outputs[0] is 'Z', expected the id of an operator"),
        (("notes", "inputs"), [["A"]], "notes.inputs[0] is ['A'], expected the id"),
        (("notes", "whole_batch"), 5, "notes.whole_batch is 5, expected a text"),
        (("notes", "batch"), 10**400, "notes.batch is 1000"),
        (("notes", "shards"), -1, "notes.shards is -1"),
        (("notes", "program_bytes"), "5", "notes.program_bytes is '5', expected a whole number"),
        (("notes", "program_bytes"), 10**400, "notes.program_bytes is 1000"),
        (("notes", "program_bytes"), True, "notes.program_bytes is True"),
        (("notes", "one_device_bytes"), -1, "notes.one_device_bytes is -1"),
        (("notes", "recompute"), "some", "notes.recompute is 'some', expected one of none, half"),
        (("notes", "bucket"), "--out", "notes.bucket is '--out', expected a name of up to 64"),
        (("notes", "buckets"), ["a b"], "notes.buckets is ['a b'], expected a list, each a name"),
        (("notes", "buckets"), ["a", "a"], "notes.buckets is ['a', 'a'], expected each name once"),
        (("notes", "bucket_shares"), {"a": 1}, "notes.bucket_shares is {'a': 1}, expected a"),
        (("notes", "profiles"), 5, "notes.profiles is 5, expected an object"),
        (("notes", "profiles"), {"cpu": 5}, "notes.profiles.'cpu' is 5, expected an object"),
        (
            ("notes", "profiles"),
            {"cpu": {"program_bytes": 1.5}},
            "notes.profiles.'cpu'.program_bytes is 1.5",
        ),
        (("notes", "any"), json.loads("[" * 50 + "]" * 50), "notes is nested more than 10 deep"),
        (("device_types",), 5, "device_types is 5, expected a list of names"),
        (("device_types",), True, "device_types is True, expected a list of names"),
        (("device_types",), [[1]], "device_types is [[1]], expected a list of names"),
        (("device_types",), "cpu", "device_types is 'cpu', expected a list of names"),
        (("device_types",), ["cpu", "cpu"], "expected names that differ"),
        (("device_types",), ["gpu"], "times for 'cpu', which device_types lacks"),
        (("operators",), {}, "operators is {}, expected a list"),
        (("tensors",), 3, "tensors is 3, expected a list"),
        (("operators", 1), 5, "operators[1]: found 5, expected an object with id"),
        (("operators", 1), {"id": "B"}, "operators[1]: key 'type' is missing"),
        (("operators", 1, "id"), 5, "operators[1]: id is 5, expected a text"),
        (("operators", 1, "type"), None, "operators[1]: type is None, expected a text"),
        (("operators", 1, "signature"), [], "operators[1]: signature is []"),
        (("operators", 1, "module"), [], "operators[1]: module is []"),
        (("operators", 1, "colocation"), 0, "operators[1]: colocation is 0, expected a text"),
        (("operators", 1, "micro_batch"), -1, "micro_batch is -1, expected a whole number below"),
        (("operators", 1, "micro_batch"), True, "micro_batch is True, expected a whole number"),
        (("operators", 1, "memory"), 0, "operators[1]: unknown key 'memory'"),
        (("operators", 1, "weight_bytes"), -3, "operators[1]: weight_bytes is -3"),
        (("operators", 1, "weight_bytes"), 2**70, "operators[1]: weight_bytes is 1180"),
        (("operators", 1, "weight_bytes"), 2**62, "at most 4611686018427387904 fit"),
        (("operators", 1, "activation_bytes"), 1.5, "activation_bytes is 1.5, expected a whole"),
        (("operators", 1, "workspace_bytes"), True, "workspace_bytes is True"),
        (("operators", 1, "seconds"), 2.0, "operators[1]: seconds is 2.0, expected an object"),
        (("operators", 1, "seconds", "cpu"), "2", "seconds.cpu is '2', expected a number"),
        (("operators", 1, "seconds", "cpu"), -1, "seconds.cpu is -1"),
        (("operators", 1, "seconds", "cpu"), float("nan"), "seconds.cpu is nan"),
        (("operators", 1, "seconds", "cpu"), float("inf"), "leave it out where it cannot run"),
        (("operators", 1, "seconds", "cpu"), 10**400, "seconds.cpu is 1000"),
        (("tensors", 0), "A", "tensors[0]: found 'A', expected an object"),
        (("tensors", 0, "producer"), 1, "tensors[0]: producer is 1, expected a text"),
        (("tensors", 0, "producer"), "Z", "tensors[0] names 'Z', which is no operator"),
        (("tensors", 0, "consumers"), "B", "tensors[0]: consumers is 'B', expected a list"),
        (("tensors", 0, "consumers"), [[1]], "tensors[0]: consumers is [[1]]"),
        (("tensors", 0, "bytes"), "7", "tensors[0]: bytes is '7', expected a whole number"),
        (("tensors", 0, "bytes"), -7, "tensors[0]: bytes is -7"),
    ],
)  # fmt: skip
def test_what_is_malformed_names_the_place(path, value, message):
    with pytest.raises(GraphError) as refused:
        graph_from_json(changed(path, value), where="g.json")
    assert str(refused.value).startswith("g.json: ")
    assert message in str(refused.value)


def test_more_times_than_memory_has_are_refused() -> None:
    """A small file could have as many as its operators times its device types."""
    document: dict[str, Any] = {
        "version": 1,
        "device_types": [f"t{k}" for k in range(10_000)],
        "operators": [{"id": str(k), "type": "x", "seconds": {}} for k in range(10_000)],
        "tensors": [],
    }
    with pytest.raises(GraphError, match="10000 operators have 100000000 times, one for each dev"):
        graph_from_json(document)
    for k, row in enumerate(document["operators"]):
        row["seconds"] = {f"t{k}": 1.0}
    del document["device_types"]
    with pytest.raises(GraphError, match="10000 operators have 100000000 times, one for each dev"):
        graph_from_json(document)


@pytest.mark.parametrize("key", ["operators", "tensors"])
def test_a_missing_key_is_called_missing(key):
    document = {k: v for k, v in DOCUMENT.items() if k != key}
    with pytest.raises(GraphError, match=f"g.json: key '{key}' is missing"):
        graph_from_json(document, where="g.json")


@pytest.mark.parametrize("document", [None, [], "graph", 3, {"version": 2}])
def test_another_document_names_the_version_that_is_read(document):
    with pytest.raises(GraphError, match="this release reads 1"):
        graph_from_json(document)


WHOLE = gzip.compress(json.dumps(DOCUMENT).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{nonsense",
        b"\xff\xfe\x80",
        b"\x1f\x8bbroken",
        WHOLE[:-20],
        WHOLE[:30] + b"\x00" * 20 + WHOLE[50:],
        b"[" * 100_000,
    ],
    ids=["empty", "text", "no UTF-8", "no gzip", "cut gzip", "damaged gzip", "deep"],
)
def test_a_file_that_is_no_document_is_named(tmp_path, data, capsys):
    file = tmp_path / "file.json"
    file.write_bytes(data)
    with pytest.raises(GraphError, match=r"file\.json: no JSON document: "):
        read_json(file)
    with pytest.raises(PlacementError, match=r"file\.json: no JSON document: "):
        load_placement(file)
    assert main(["show", str(file)]) == 3
    assert capsys.readouterr().err.startswith(f"error: {file}: no JSON document: ")


@pytest.mark.parametrize("key", ["id", "type", "signature", "module"])
def test_half_a_surrogate_pair_is_refused_with_its_place(key: str) -> None:
    """JSON can hold one, and no file or hash can."""
    good = {"id": "a", "type": "x", "seconds": {"cpu": 1.0}}
    bad = {"id": "b", "type": "x", "seconds": {"cpu": 1.0}, key: "b\ud800"}
    document = {"version": 1, "operators": [good, bad], "tensors": []}
    with pytest.raises(GraphError, match=rf"operators\[1\]: {key} is 'b\\ud800', expected .*UTF-8"):
        graph_from_json(document)
    types = {**document, "operators": [good | {"seconds": {"\udfff": 1.0}}]}
    with pytest.raises(GraphError, match=r"device_types is .*UTF-8"):
        graph_from_json(types)
