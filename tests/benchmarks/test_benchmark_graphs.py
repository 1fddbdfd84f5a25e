"""The benchmarks' graphs: is the synthetic one a training step, and are captures kept?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import graphs
from benchmarks.graphs import layered_training_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph


def above(graph: OperatorGraph) -> list[int]:
    """Bit sets of ancestors."""
    found = [0] * graph.operator_count
    for i in graph.topological_order.tolist():
        for e in graph.input_tensors(i).tolist():
            producer = int(graph.tensor_producer[e])
            found[i] |= found[producer] | 1 << producer
    return found


@pytest.mark.parametrize("operators", [300, 1000, 1499, 5000])
def test_there_are_exactly_as_many_operators_as_asked_for(operators: int) -> None:
    graph = layered_training_graph(operators, seed=0)
    assert graph.operator_count == operators
    watching = sum(kind == "aten.linalg_vector_norm.default" for kind in graph.types)
    assert watching < 120, "what whole layers leave over"


def test_the_seed_alone_decides() -> None:
    one, same, other = (layered_training_graph(1500, seed=s) for s in (1, 1, 2))
    assert one.structure_hash == same.structure_hash != other.structure_hash
    wide = layered_training_graph(1500, seed=1, width=512)
    assert wide.flops.sum() > 3 * one.flops.sum()


def test_every_parameter_is_updated_once_after_its_last_reader() -> None:
    graph = layered_training_graph(800, seed=3)
    ancestors = above(graph)
    updates = [i for i, kind in enumerate(graph.types) if kind == "update"]
    assert len(updates) == graph.types.count("parameter") > 100
    for update in updates:
        name = graph.ids[update].removeprefix("update_")
        parameter = graph.index_of[f"parameter_{name}"]
        assert graph.colocation[update] == graph.colocation[parameter] >= 0
        for e in graph.output_tensors(parameter):
            for reader in graph.tensor_consumers(e).tolist():
                assert reader == update or ancestors[update] >> reader & 1, graph.ids[reader]


def test_forward_comes_before_backward_and_weight_gradients_are_apart() -> None:
    graph = layered_training_graph(800, seed=3)
    ancestors, at = above(graph), graph.index_of
    last, first = at["last_norm"], at["layer0_query"]
    assert ancestors[last] >> first & 1
    assert ancestors[at["layer0_query_dw"]] >> last & 1
    dx, dw = at["layer0_query_dx"], at["layer0_query_dw"]
    assert not ancestors[dx] >> dw & 1 and not ancestors[dw] >> dx & 1


def test_costs_are_those_of_the_shapes() -> None:
    graph = layered_training_graph(800, seed=3, width=64, batch=2, length=32)
    query = graph.index_of["layer0_query"]
    assert graph.flops[query] == 2 * 64 * 64 * 64
    assert graph.traffic_bytes[query] == 4 * (64 + 64 * 64 + 64 * 64 + 64 * 64)
    weight = graph.index_of["parameter_layer0_query_weight"]
    assert graph.weight_bytes[weight] == 3 * 4 * 64 * 64
    views = [i for i, kind in enumerate(graph.types) if kind == "aten.view.default"]
    assert views and not graph.activation_bytes[views].any()
    sent = graph.tensor_bytes[np.isin(graph.tensor_producer, views)]
    assert (sent > 0).all(), "a view is sent as what it shows"


@pytest.mark.parametrize(("operators", "width", "words"), [(50, 256, "two"), (900, 250, "divide")])
def test_what_cannot_be_made_is_explained(operators: int, width: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        layered_training_graph(operators, seed=0, width=width)


@pytest.mark.thorough
def test_a_capture_is_kept_and_torch_stays_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLACEWIRE_BENCH_CACHE", str(tmp_path))
    small = {"tiny": ("placewire.examples.models.fnet:training_step_small", 2)}
    monkeypatch.setattr(graphs, "CAPTURED", small)
    first = graphs.captured("tiny")
    assert first.flops.any() and "captured placewire.examples.models.fnet" in capfd.readouterr().err
    assert graphs.captured("tiny").structure_hash == first.structure_hash
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(graphs, "CAPTURED", {"tiny": ("placewire.examples.models.fnet:nothing", 2)})
    monkeypatch.setattr(graphs, "_sources_digest", lambda: "other")
    with pytest.raises(RuntimeError, match="no function 'nothing'"):
        graphs.captured("tiny")


def test_published_graphs_come_with_their_devices() -> None:
    if not graphs.workloads_folder().is_dir():
        pytest.skip("the published graphs are not beside the project")
    found = list(graphs.published())
    assert len(found) == 9
    for one in found:
        assert {d.type for d in one.cluster.devices} <= set(one.graph.device_types), one.name


def test_no_folder_of_published_graphs_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEWIRE_WORKLOADS", str(tmp_path / "none"))
    assert list(graphs.published()) == []
