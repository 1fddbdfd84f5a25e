"""Explain's words for how layers are spread: are they those that the field has for it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.explain.parallelism import parallelism_words, stage_words, stages
from placewire.optimizer.graph.operator_graph import OperatorGraph
from tests.optimizer.cases import cluster
from tests.optimizer.peers.steps import chain
from tests.placements import placement_of

# Layer and micro-batch (None for weights and updates) to a device's number.
Home = Callable[[int, int | None], int]


def layered(micro_batches: int, layers: int) -> OperatorGraph:
    """A chain whose operators, too, say to which layer they belong."""
    graph = chain(micro_batches, layers)
    modules = [
        f"model.layers.{name[1]}" if name[0] in "fbg" else module
        for name, module in zip(graph.ids, graph.modules, strict=True)
    ]
    return replace(graph, modules=tuple(modules))


def words(graph: OperatorGraph, home: Home, servers: int = 4) -> list[str]:
    devices = {}
    for name, module, micro_batch in zip(
        graph.ids, graph.modules, graph.micro_batch.tolist(), strict=True
    ):
        layer = int(module.rpartition(".")[2]) if module[-1].isdigit() else 0
        number = home(layer, micro_batch if micro_batch >= 0 else None)
        devices[name] = f"s{number + 1}/0"
    found = stages(graph, placement_of(graph, cluster(servers), devices))
    return [parallelism_words(found), *map(stage_words, found)]


def data_parallel(layer: int, micro_batch: int | None) -> int:
    return layer % 4 if micro_batch is None else micro_batch % 4


@pytest.mark.parametrize(
    ("micro_batches", "home", "said"),
    [
        (4, lambda layer, m: 0, ["one device", "model.layers.0-3: on s1/0"]),
        (1, lambda layer, m: 0, ["one device", "model.layers.0-3: on s1/0"]),
        (
            8,
            data_parallel,
            [
                "data parallelism over 4 devices",
                "model.layers.0-3: data-parallel over s1/0, s2/0, s3/0, s4/0, micro-batches 2 "
                "each; weights spread over these",
            ],
        ),
        (
            4,
            lambda layer, m: 3 if m is None else min(m, 1),
            [
                "data parallelism over 2 devices",
                "model.layers.0-3: data-parallel over s1/0, s2/0, micro-batches 1, 3; weights on "
                "s4/0",
            ],
        ),
        (
            4,
            lambda layer, m: layer // 2,
            [
                "a pipeline of 2 stages",
                "model.layers.0-1: on s1/0",
                "model.layers.2-3: on s2/0",
            ],
        ),
        (
            4,
            lambda layer, m: layer % 2,
            [
                "a pipeline of 4 stages on 2 devices",
                *(f"model.layers.{k}: on s{k % 2 + 1}/0" for k in range(4)),
            ],
        ),
        (
            4,
            lambda layer, m: 2 * (layer // 2) + (m or 0) // 2,
            [
                "a pipeline of 2 stages, 2 of them data-parallel",
                "model.layers.0-1: data-parallel over s1/0, s2/0, micro-batches 2 each; weights "
                "on s1/0",
                "model.layers.2-3: data-parallel over s3/0, s4/0, micro-batches 2 each; weights "
                "on s3/0",
            ],
        ),
    ],
)  # fmt: skip
def test_what_a_placement_amounts_to(micro_batches: int, home: Home, said: list[str]) -> None:
    assert words(layered(micro_batches, 4), home) == said


def test_a_layer_whose_operators_run_on_several_devices() -> None:
    graph = layered(2, 2)
    devices = dict.fromkeys(graph.ids, "s1/0")
    for name in graph.ids:
        if name.startswith("b1_m"):
            devices[name] = "s2/0"
    found = stages(graph, placement_of(graph, cluster(2), devices))
    assert parallelism_words(found) == "a pipeline of 2 stages, 1 of them spread by operators"
    assert [stage_words(stage) for stage in found] == [
        "model.layers.0: on s1/0",
        "model.layers.1: spread by operators over s1/0, s2/0; weights on s1/0",
    ]


def test_an_operator_that_keeps_what_it_computes_computes() -> None:
    """As the outputs of an inference, which are held until the step ends."""
    graph = layered(1, 2)
    for name in graph.ids:
        if name.startswith("f1_m"):
            graph.weight_bytes[graph.index_of[name]] = 1000
    devices = {name: "s2/0" if name.startswith("f1_m") else "s1/0" for name in graph.ids}
    found = stages(graph, placement_of(graph, cluster(2), devices))
    assert stage_words(found[1]) == (
        "model.layers.1: spread by operators over s1/0, s2/0; weights on s1/0"
    )


def test_an_update_that_is_written_out_is_no_work_of_its_layer() -> None:
    graph = layered(1, 2)
    names = tuple(name.replace("update1", "update_mul_1") for name in graph.ids)
    types = tuple("aten.mul.Tensor" if kind == "update" else kind for kind in graph.types)
    modules = tuple(
        "model.layers.1" if name == "update_mul_1" else module
        for name, module in zip(names, graph.modules, strict=True)
    )
    rows = np.full(graph.operator_count, -1)
    notes = {**graph.notes, "decompose": True}
    graph = replace(graph, ids=names, types=types, modules=modules, micro_batch=rows, notes=notes)
    graph.seconds[graph.index_of["update_mul_1"]] = 1.0
    devices = {name: "s2/0" if name == "update_mul_1" else "s1/0" for name in graph.ids}
    found = stages(graph, placement_of(graph, cluster(2), devices))
    assert [stage_words(stage) for stage in found] == ["model.layers.0-1: on s1/0"]


def test_a_graph_without_modules_has_no_stages() -> None:
    graph = chain(2, layers=2, blocks=0)
    devices = dict.fromkeys(graph.ids, "s1/0")
    assert stages(graph, placement_of(graph, cluster(2), devices)) == ()
    assert parallelism_words(()) == ""
