"""How a step is taken apart, and which steps peers refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.peers.ddp import ddp_step
from placewire.optimizer.peers.step_parts import step_parts
from tests.optimizer.cases import cluster
from tests.optimizer.peers.steps import MODELS, WEIGHT, captured, chain


def test_each_gradient_is_a_sum_with_a_leaf_in_every_micro_batch() -> None:
    graph = chain(3, layers=2)
    parts = step_parts(graph)
    names = {graph.ids[one.root]: [graph.ids[i] for i in one.leaves] for one in parts.gradients}
    assert names == {
        "sum2.0": ["g0_m0", "g0_m1", "g0_m2"],
        "sum2.1": ["g1_m0", "g1_m1", "g1_m2"],
    }
    assert {one.bytes for one in parts.gradients} == {WEIGHT}
    assert [graph.ids[i] for i in parts.before] == ["w0", "w1"]
    assert [graph.ids[i] for i in parts.after] == ["loss", "update0", "update1"]
    forward = {graph.ids[i] for i in np.flatnonzero(parts.forward)}
    inside = {f"{name}_m{m}" for name in ("x", "f0", "f1", "l") for m in range(3)}
    assert forward == {"w0", "w1", "loss"} | inside


@pytest.mark.parametrize("model", MODELS)
def test_all_gradients_of_a_model_are_found(model: str) -> None:
    graph = captured(model, 4)
    parts, types = step_parts(graph), np.array(graph.types)
    updates = set(np.flatnonzero(types == "update").tolist())
    assert {c for one in parts.gradients for c in one.readers} == updates
    assert len(parts.gradients) == (types == "parameter").sum()
    for one in parts.gradients:
        assert graph.micro_batch[list(one.leaves)].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (chain(1), "only one micro-batch"),
        (chain(2, loss="nothing"), "does not say which operator makes the loss"),
        (chain(2, summed="other"), "adds no gradients"),
    ],
)
def test_what_peers_cannot_take_apart_is_refused(graph, why) -> None:
    with pytest.raises(ValueError, match=why):
        step_parts(graph)


def test_an_update_that_reads_more_than_a_sum_is_refused() -> None:
    """Of two gradients, one is made otherwise: its update would run on no device."""
    graph = chain(2, layers=2)
    types = list(graph.types)
    types[graph.index_of["sum1.1"]] = "other"
    odd = step_parts(replace(graph, types=tuple(types)))
    with pytest.raises(ValueError, match="update1 needs more of several micro-batches"):
        ddp_step(odd, cluster(2))


def test_what_reads_a_view_of_a_weight_reads_the_weight() -> None:
    """Each micro-batch transposes weights for itself, and peers gather weights for what they do."""
    parts = step_parts(captured("bert", 2))
    graph = parts.graph
    views = [i for i in parts.shown if graph.micro_batch[i] >= 0]
    assert {int(graph.micro_batch[i]) for i in views} == {0, 1}
    for i in views:
        (weight,) = parts.shown[i]
        assert graph.types[i] == "aten.t.default" and graph.types[weight] == "parameter"
        for e in graph.output_tensors(i):
            assert all(weight in parts.parameters_read(int(c)) for c in graph.tensor_consumers(e))
