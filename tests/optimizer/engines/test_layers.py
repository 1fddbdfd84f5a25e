"""Layers of captured steps: an operator is where its part of the model is."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.engines.layers import (
    crossing_bytes,
    layers_of,
    ranges_of,
    work_and_weights,
)
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.profile.modelled import with_modelled_seconds
from placewire.optimizer.reductions.written_updates import written_updates
from tests.optimizer.peers.steps import captured as peers_captured

CUTS = [(2, 1), (4, 1), (4, 2), (4, 4)]


@functools.cache
def captured(model: str, accumulate: int, shards: int) -> OperatorGraph:
    path = f"placewire.examples.models.{model}"
    step = capture(path, 8, OptimizerChoice(), 0, accumulate=accumulate, shards=shards)
    return with_modelled_seconds(step.operators, ["rtx4080s"])


def layers(graph: OperatorGraph) -> FloatArray:
    found = layers_of(graph, np.arange(graph.operator_count), graph.seconds[:, 0])
    assert found is not None
    return found


def numbers(graph: OperatorGraph) -> IntArray:
    """int64[n]: k of `model.layers.k`, -1 elsewhere."""
    found = (re.search(r"\.layers\.(\d+)\b", name) for name in graph.modules)
    return np.array([int(one[1]) if one else -1 for one in found])


@pytest.mark.parametrize(("accumulate", "shards"), CUTS)
def test_layers_of_a_model_do_not_mix_forward_or_backward_or_in_its_weights(
    accumulate: int, shards: int
) -> None:
    """Also where weights are joined of shards, and where small weights of several layers are one
    tensor: its slices are where their layer is."""
    graph = captured("bert:training_step_small", accumulate, shards)
    layer, number = layers(graph), numbers(graph)
    several = number.max() + 1
    assert several >= 2
    inside = [layer[(number == k) & (graph.micro_batch >= 0)] for k in range(several)]
    assert all(len(one) > 100 for one in inside)
    ends = [(float(one.min()), float(one.max())) for one in inside]
    assert ends == sorted(ends)
    assert all(a[1] <= b[0] for a, b in pairwise(ends)), ends
    for k in range(several):
        shared = layer[(number == k) & (graph.micro_batch < 0)]
        near = (shared >= ends[k][0]) & (shared <= ends[k][1])
        # Small weights of several layers are one tensor, with one update.
        assert near.mean() > (0.9 if shards == 1 else 0.5), (k, near.mean())


@pytest.mark.parametrize("heavy", [False, True])
def test_a_heavy_weight_of_both_ends_belongs_to_the_later_one_with_the_embedding(
    heavy: bool,
) -> None:
    graph = captured("gpt2:training_step_small", 2, 1)
    tied = graph.index_of["parameter_model_embeddings_word_weight"]
    if heavy:
        size = graph.tensor_bytes.copy()
        size[graph.output_tensors(tied)] *= 1000
        graph = replace(graph, tensor_bytes=size)
    layer, number = layers(graph), numbers(graph)
    of = {
        kind: layer[[i for i, t in enumerate(graph.types) if kind in t]]
        for kind in ("nll_loss_forward", "embedding_dense_backward")
    }
    assert (of["nll_loss_forward"] > 0.8).all()
    assert (layer[tied] > 0.8) == heavy
    looked_up = [
        i for i, kind in enumerate(graph.types) if kind == "aten.embedding.default"
        and tied in graph.tensor_producer[graph.input_tensors(i)]
    ]  # fmt: skip
    assert len(looked_up) == 2 and ((layer[looked_up] > 0.8) == heavy).all()
    assert (of["embedding_dense_backward"] > 0.8).any() == heavy
    # The layers between are where they were.
    assert layer[number == 0].max() < layer[number == 1].min()


def test_labels_are_where_the_loss_reads_them() -> None:
    graph = captured("bert:training_step_small", 2, 1)
    layer, inputs = layers(graph), [i for i, kind in enumerate(graph.types) if kind == "input"]
    read_late = [
        i for i in inputs
        if all("loss" in graph.types[c] for e in graph.output_tensors(i)
               for c in graph.tensor_consumers(e))
    ]  # fmt: skip
    assert read_late and (layer[read_late] > 0.8).all()


def test_ranges_end_where_few_bytes_cross() -> None:
    graph = captured("bert:training_step_small", 2, 1)
    layer, work = layers(graph), graph.seconds[:, 0]
    level, at = np.unique(layer, return_inverse=True)
    everywhere = crossing_bytes(graph, at.astype(np.int64), len(level))[:-1]
    piece = ranges_of(graph, layer, work, 4)
    count = int(piece.max()) + 1
    assert count == 4
    assert crossing_bytes(graph, piece, count)[:-1].max() < np.median(everywhere) / 2
    # Operators of one layer stay together, and ranges rise along the layers.
    for k in range(count - 1):
        assert layer[piece == k].max() < layer[piece == k + 1].min()


def test_a_layer_with_most_of_the_weights_is_a_range_of_its_own() -> None:
    graph = captured("bert:training_step_small", 2, 1)
    table = graph.index_of["parameter_model_embeddings_word_weight"]
    weight_bytes = graph.weight_bytes.copy()
    weight_bytes[table] = 10 * weight_bytes.sum()
    layer = layers(graph)
    heavy = replace(graph, weight_bytes=weight_bytes)
    piece = ranges_of(heavy, layer, work_and_weights(heavy, graph.seconds[:, 0]), 48)
    assert (layer[piece == piece[table]] == layer[table]).all()


@pytest.mark.parametrize(("accumulate", "shards"), [(2, 1), (4, 4)])
def test_an_update_that_is_written_out_is_of_its_weights_layer(
    accumulate: int, shards: int
) -> None:
    graph = peers_captured("bert", accumulate, shards=shards, decompose=True)
    layer, number = layers(graph), written_updates(graph)
    assert number.max() > 20
    weights = [i for i, kind in enumerate(graph.types) if kind == "parameter"]
    for i in weights:
        (update,) = {int(number[c]) for e in graph.output_tensors(i).tolist()
                     for c in graph.tensor_consumers(e).tolist() if number[c] >= 0}  # fmt: skip
        assert set(layer[number == update].tolist()) == {float(layer[i])}
