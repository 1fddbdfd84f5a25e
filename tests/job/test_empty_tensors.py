"""Tensors of no elements, which no message brings: do steps with them train as on one rank?"""

from __future__ import annotations

import pytest
import torch

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.job.lazy_training import on_one_device, train
from tests.placements import cluster_of, placement_of, random_devices


@pytest.fixture(scope="module")
def joined() -> CapturedStep:
    return capture("tests.models.empty:training_step", 4, OptimizerChoice(lr=1e-2), 3)


def test_some_operators_make_nothing(joined: CapturedStep) -> None:
    empty = {name for name, layout in joined.layouts.items() if 0 in layout.size}
    graph = joined.operators
    read = {
        graph.ids[graph.tensor_producer[e]] for i in range(graph.operator_count)
        for e in graph.input_tensors(i)
    }  # fmt: skip
    assert len(empty & read) >= 2


@pytest.mark.parametrize("devices", [2, 3])
def test_whoever_reads_nothing_needs_no_message(joined: CapturedStep, devices: int) -> None:
    losses, values = train(joined, on_one_device(joined))
    cluster, graph = cluster_of(devices), joined.operators
    for seed in range(8):
        where = random_devices(graph, cluster, seed)
        others, same = train(joined, placement_of(graph, cluster, where, order_seed=seed))
        assert losses == others
        assert all(torch.equal(same[name], value) for name, value in values.items())
