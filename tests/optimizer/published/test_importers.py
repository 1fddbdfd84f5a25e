"""Published graph formats: the graph says what the file says, and mistakes are named."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.published.importers.moirai import DEVICES, read_moirai
from placewire.optimizer.published.importers.msr import read_msr
from placewire.optimizer.published.importers.networkx_graph import from_networkx
from placewire.optimizer.published.importers.node_link import read_node_link, write_node_link
from placewire.optimizer.published.importers.thesis import read_thesis
from tests.optimizer.cases import graph as small_graph
from tests.paths import WORKLOADS

THESIS: dict[str, Any] = {
    "directed": True,
    "multigraph": False,
    "graph": {},
    "nodes": [
        {"id": "a", "op_type": "conv", "mem": 1000, "comp_cost": {"gpu:0": 1500.0, "gpu:1": 3000}},
        {"id": "b", "op_type": "relu", "mem": 10, "comp_cost": {"gpu:0": 2.5, "gpu:1": 5}},
        {"id": "c", "op_type": "relu", "mem": 0, "comp_cost": {"gpu:0": 0, "gpu:1": 0}},
    ],
    "links": [
        {"source": "a", "target": "b", "tensor_size_in_bit": 800},
        {"source": "a", "target": "c", "tensor_size_in_bit": 800},
        {"source": "b", "target": "c", "tensor_size_in_bit": 9},
    ],
}
MSR: dict[str, Any] = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 4096.0,
    "nodes": [
        {"id": 1, "supportedOnFpga": 1, "cpuLatency": 20.0, "fpgaLatency": 2.0, "size": 100.0,
         "isBackwardNode": 0, "colorClass": 7},
        {"id": 2, "supportedOnFpga": False, "cpuLatency": 1.0, "fpgaLatency": 0.0, "size": 8.0,
         "isBackwardNode": True, "colorClass": 7},
        {"id": 3, "supportedOnFpga": True, "cpuLatency": 3.0, "fpgaLatency": 0.5, "size": 0.0,
         "isBackwardNode": True},
    ],
    "edges": [
        {"sourceId": 1, "destId": 2, "cost": 0.5, "size": 1000.0},
        {"sourceId": 1, "destId": 3, "cost": 0.5, "size": 1000.0},
        {"sourceId": 2, "destId": 3, "cost": 0.25, "size": 500.0},
    ],
}  # fmt: skip
# Seconds per size unit of each ordered pair; the fastest are 0 -> 3 and 1 -> 3.
_FACTORS = [[0, 2, 4, 1], [2, 0, 3, 1], [4, 3, 0, 4], [2, 2, 4, 0]]


def transfers(size: float) -> list[list[float]]:
    return [[round(size * factor, 5) for factor in row] for row in _FACTORS]


MOIRAI: dict[str, Any] = {
    "device_memory_bytes": [11e9, 16e9, 8e9, 8e9],
    "nodes": [
        {"id": 5, "time_ms": [1.0, 2.0, 3.0, 4.0], "memory_bytes": 12.0},
        {"id": 6, "time_ms": [0.5, 0.5, 0.5, 0.5], "memory_bytes": 0.0},
        {"id": 7, "time_ms": [0.0, 0.0, 0.0, 0.0], "memory_bytes": 0.0},
    ],
    "edges": [
        {"source": 5, "target": 6, "transfer_ms": transfers(0.2)},
        {"source": 5, "target": 7, "transfer_ms": transfers(0.2)},
        {"source": 6, "target": 7, "transfer_ms": transfers(0.0)},
    ],
}


def test_thesis_units_and_shared_outputs() -> None:
    graph = read_thesis(THESIS).graph
    assert graph.ids == ("a", "b", "c") and graph.types == ("conv", "relu", "relu")
    assert graph.device_types == ("gpu:0", "gpu:1")
    assert graph.seconds.tolist() == [[1.5e-3, 3e-3], [2.5e-6, 5e-6], [0, 0]]
    assert graph.weight_bytes.tolist() == [1000, 10, 0]
    # Links of equal size from one producer are one tensor with two readers. 9 bits are 2 bytes.
    assert graph.tensor_bytes.tolist() == [100, 2]
    assert graph.tensor_consumers(0).tolist() == [1, 2]


def test_thesis_outputs_of_unlike_sizes_are_two_tensors() -> None:
    document = copy.deepcopy(THESIS)
    document["links"][1]["tensor_size_in_bit"] = 1600
    assert sorted(read_thesis(document).graph.tensor_bytes.tolist()) == [2, 100, 200]


def test_msr_times_costs_and_machine() -> None:
    imported = read_msr(MSR)
    graph, cluster = imported.graph, imported.cluster
    assert cluster is not None
    assert graph.device_types == ("accelerator", "cpu")
    assert graph.seconds.tolist() == [[2e-3, 20e-3], [np.inf, 1e-3], [0.5e-3, 3e-3]]
    assert graph.colocation.tolist() == [0, 0, -1]
    assert graph.types == ("forward", "backward", "backward")
    assert [d.type for d in cluster.devices] == ["accelerator", "accelerator", "cpu"]
    assert cluster.devices[0].memory_bytes == 4096
    seconds = graph.tensor_bytes * 8 / cluster.intra_server_bits_per_second
    assert seconds.tolist() == pytest.approx([0.5e-3, 0.25e-3])
    assert graph.tensor_consumers(0).tolist() == [1, 2]


def test_msr_types_are_those_that_names_tell() -> None:
    document = copy.deepcopy(MSR)
    said = {
        "LayerNormalization3": "LayerNormalization", "MatMul7_Grad/Gemm_3": "Gemm",
        "Gelu_13": "Gelu", "LayerNormalization3_saved_mean_1": "getitem",
        "Relu4_saved_mean_1": "backward", "node77grad": "backward", "99": "backward",
        "bert.encoder.layer.0.weight": "backward",
    }  # fmt: skip
    first, _, last = document["nodes"]
    first["name"] = "LayerNormalization3"
    document["edges"] = []
    for name, kind in said.items():
        document["nodes"] = [first, last | {"name": name}]
        assert read_msr(document).graph.types == ("LayerNormalization", kind)


def test_msr_where_size_and_cost_disagree_the_cost_counts() -> None:
    document = copy.deepcopy(MSR)
    document["edges"][2]["size"] = 4000.0
    imported = read_msr(document)
    assert imported.cluster is not None
    seconds = imported.graph.tensor_bytes * 8 / imported.cluster.intra_server_bits_per_second
    assert seconds.tolist() == pytest.approx([0.5e-3, 0.25e-3])
    assert imported.graph.notes["edges_whose_size_agrees"] == 2


def test_msr_for_accelerators_only() -> None:
    document = copy.deepcopy(MSR)
    with pytest.raises(GraphError, match=r"nodes\[1\]: runs on none of accelerator"):
        read_msr(document, devices="accelerator")
    document["nodes"][1]["supportedOnFpga"] = True
    imported = read_msr(document, devices="accelerator")
    assert imported.graph.device_types == ("accelerator",)
    assert imported.cluster is not None and len(imported.cluster.devices) == 2


def test_msr_sizes_of_no_common_rate_are_refused() -> None:
    document = copy.deepcopy(MSR)
    for size, edge in zip((1000.0, 3000.0, 70.0), document["edges"], strict=True):
        edge["size"] = size
    with pytest.raises(GraphError, match="one rate for only 1 of 3 edges"):
        read_msr(document)


def test_moirai_transfers_become_links() -> None:
    imported = read_moirai(MOIRAI)
    graph, cluster = imported.graph, imported.cluster
    assert cluster is not None
    assert graph.device_types == DEVICES
    assert graph.seconds[0].tolist() == [1e-3, 2e-3, 3e-3, 4e-3]
    assert graph.weight_bytes.tolist() == [12, 0, 0]
    assert cluster.memory_bytes.tolist() == [11 * 10**9, 16 * 10**9, 8 * 10**9, 8 * 10**9]
    assert graph.tensor_consumers(0).tolist() == [1, 2]
    assert graph.tensor_bytes[1] == 0
    assert max(link.rate_bits_per_second for link in cluster.links) == pytest.approx(100e9)
    for (a, b), link in cluster.link_of.items():
        took = float(graph.tensor_bytes[0]) * 8 / link.rate_bits_per_second
        assert took == pytest.approx(MOIRAI["edges"][0]["transfer_ms"][a][b] / 1e3, rel=1e-4)


def test_moirai_times_that_fit_no_rates_are_refused() -> None:
    document = copy.deepcopy(MOIRAI)
    document["edges"][2]["transfer_ms"] = transfers(0.1)
    document["edges"][2]["transfer_ms"][0][1] *= 3
    with pytest.raises(GraphError, match=r"edges\[\d\]: transfer_ms\[\d\]\[\d\] is .* one rate"):
        read_moirai(document)


def test_moirai_an_operator_has_one_output() -> None:
    document = copy.deepcopy(MOIRAI)
    document["edges"][1]["transfer_ms"] = transfers(0.1)
    with pytest.raises(GraphError, match=r"edges\[1\]: takes another time than edges\[0\]"):
        read_moirai(document)


def change(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(document)
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return document


BACK = {"source": "c", "target": "a", "tensor_size_in_bit": 8}
MISTAKES = [
    ("thesis", THESIS, ("nodes", 1, "id"), "a", "nodes[1]: id 'a' is also that of nodes[0]"),
    ("thesis", THESIS, ("links", 2, "target"), "x", "links[2]: target is 'x', which is no node"),
    ("thesis", THESIS, ("links", 2, "target"), "b", "links[2]: joins 'b' to itself"),
    ("thesis", THESIS, ("links", 2), BACK, "the graph has a cycle"),
    ("thesis", THESIS, ("nodes", 0, "comp_cost", "gpu:1"), -1, "comp_cost.gpu:1 is -1: it is neg"),
    ("thesis", THESIS, ("nodes", 0, "comp_cost"), {}, "nodes[0]: comp_cost is {}, expected micro"),
    ("thesis", THESIS, ("nodes", 0, "mem"), "1k", "nodes[0]: mem is '1k', expected a number"),
    ("thesis", THESIS, ("nodes", 0, "mem"), float("nan"), "nodes[0]: mem is nan"),
    ("thesis", THESIS, ("links", 0, "tensor_size_in_bit"), None, "links[0]: key 'tensor_size_in_"),
    ("thesis", THESIS, ("nodes", 1, "op_type"), "\ud800", r"operators[1]: type is '\ud800', exp"),
    ("thesis", THESIS, ("nodes",), None, "nodes is missing"),
    ("thesis", THESIS, ("nodes",), {}, "nodes is no list"),
    ("msr", MSR, ("nodes", 2, "fpgaLatency"), -0.1, "nodes[2]: fpgaLatency is -0.1: it is negat"),
    ("msr", MSR, ("edges", 1, "destId"), 9, "edges[1]: destId is '9', which is no node"),
    ("msr", MSR, ("edges", 0, "cost"), None, "edges[0]: key 'cost' is missing"),
    ("msr", MSR, ("maxSizePerFPGA",), None, "maxSizePerFPGA is None, expected a number"),
    ("moirai", MOIRAI, ("nodes", 1, "time_ms"), [1.0], "nodes[1]: time_ms is [1.0], expected 4"),
    ("moirai", MOIRAI, ("nodes", 1, "time_ms", 2), -3, "nodes[1]: time_ms[2] is -3: it is neg"),
    ("moirai", MOIRAI, ("edges", 0, "transfer_ms", 1, 1), 1, "time to send to itself"),
    ("moirai", MOIRAI, ("edges", 0, "source"), True, "edges[0]: source is True, expected a name"),
    ("moirai", MOIRAI, ("device_memory_bytes",), [1], "device_memory_bytes is [1], expected 4"),
]


@pytest.mark.parametrize(("form", "document", "path", "value", "message"), MISTAKES)
def test_a_mistake_names_file_row_and_key(
    form: str,
    document: dict[str, Any],
    path: tuple[Any, ...],
    value: Any,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, out = tmp_path / "in.json", tmp_path / "out.json"
    file.write_text(json.dumps(change(document, path, value)))
    assert main(["import", "--format", form, str(file), "--out", str(out)]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ") and said.count("\n") == 1
    assert message in said
    assert not out.exists()


def test_import_writes_graph_and_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, cluster = (tmp_path / name for name in ("in.json.gz", "out.json.gz", "cluster.json"))
    file.write_bytes(gzip.compress(json.dumps(MSR).encode()))
    command = ["import", "--format", "msr", str(file), "--out", str(out)]
    assert main([*command, "--cluster-out", str(cluster)]) == 0
    assert load_graph(out).name == "in"
    assert len(Cluster.model_validate_json(cluster.read_text()).devices) == 3
    file.write_text(json.dumps(THESIS))
    command[2] = "thesis"
    assert main([*command, "--cluster-out", str(cluster)]) == 3
    assert "thesis describes no cluster" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([*command, "--devices", "accelerator"])
    assert ended.value.code == 2
    assert "--devices is an option of --format msr" in capsys.readouterr().err


def test_node_link_out_and_in_is_the_same_graph(tmp_path: Path) -> None:
    graph = small_graph(
        {"A": 1.0, "B": 2.0, "C": 0.5},
        [("A", ["B", "C"], 100), ("A", ["C"], 7), ("B", ["C"], 0)],
        weight_bytes={"A": 3},
        colocation={"B": "0", "C": "0"},
    )
    file, exported, back = (tmp_path / f"{k}.json" for k in range(3))
    save_graph(graph, file)
    assert main(["export", str(file), "--out", str(exported)]) == 0
    command = ["import", "--format", "node-link", str(exported), "--out", str(back)]
    assert main(command) == 0
    again = load_graph(back)
    assert again.structure_hash == graph.structure_hash
    assert again.profile_digest == graph.profile_digest
    document = json.loads(exported.read_text())
    through = from_networkx(networkx.DiGraph(networkx.node_link_graph(document, edges="edges")))
    assert through.structure_hash == graph.structure_hash
    older = {**document, "links": document["edges"]}
    del older["edges"]
    assert read_node_link(older).graph.structure_hash == graph.structure_hash


def test_node_link_mistakes_name_the_row() -> None:
    document = write_node_link(small_graph({"A": 1.0, "B": 2.0}, [("A", ["B"], 100)]))
    wrong = change(document, ("nodes", 0, "seconds"), {"cpu": -1})
    with pytest.raises(GraphError, match=r"nodes\[0\]: seconds.cpu is -1"):
        read_node_link(wrong)
    with pytest.raises(GraphError, match=r"edges\[0\]: tensors is 5"):
        read_node_link(change(document, ("edges", 0, "tensors"), 5))
    twice = change(document, ("edges", 0, "tensors"), [[0, 100], [0, 7]])
    with pytest.raises(GraphError, match=r"edges\[0\]: output 0 of 'A' has two sizes"):
        read_node_link(twice)


@pytest.mark.skipif(not WORKLOADS.is_dir(), reason="the published workloads are not here")
@pytest.mark.parametrize("form", ["msr", "moirai"])
def test_every_published_graph_keeps_its_costs(form: str) -> None:
    files = sorted((WORKLOADS / form).glob("*.json"))
    assert files
    for file in files:
        document = json.loads(file.read_text())
        imported = (read_msr if form == "msr" else read_moirai)(document)
        graph, cluster = imported.graph, imported.cluster
        assert cluster is not None
        assert graph.operator_count == len(document["nodes"])
        sent = {
            (graph.ids[a], graph.ids[b]): float(graph.tensor_bytes[e])
            for a, b, e in zip(*graph.edges, strict=True)
        }
        for edge in document["edges"]:
            if form == "msr":
                bits = 8 * sent[str(edge["sourceId"]), str(edge["destId"])]
                took = bits / cluster.intra_server_bits_per_second
                assert took * 1e3 == pytest.approx(edge["cost"], abs=1e-6)
                continue
            bits = 8 * sent[str(edge["source"]), str(edge["target"])]
            for (a, b), link in cluster.link_of.items():
                took = bits / link.rate_bits_per_second
                assert took * 1e3 == pytest.approx(edge["transfer_ms"][a][b], rel=1e-3, abs=2e-5)
