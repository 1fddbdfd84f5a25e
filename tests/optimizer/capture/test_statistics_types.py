"""The types of a normalisation's statistics are those that its kernels give."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.statistics_types import NORMALISATIONS, correct_statistics
from placewire.optimizer.capture.step import captured_from
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.job.lazy_training import on_one_device, train
from tests.placements import cluster_of, placement_of, random_devices

LAYER, GROUP, BATCH, BATCH_ALONE = NORMALISATIONS


@pytest.mark.parametrize("target", NORMALISATIONS, ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", [torch.float32, None])
def test_they_are_those_of_the_kernel(
    target: torch._ops.OpOverload, given: torch.dtype, weights: torch.dtype | None
) -> None:
    x = torch.randn(4, 8, 5).to(given)
    w = None if weights is None else torch.ones(5 if target is LAYER else 8, dtype=weights)
    mean, variance = torch.zeros(8), torch.ones(8)
    arguments = {
        LAYER: (x, [5], w, w, 1e-5), GROUP: (x, w, w, 4, 8, 5, 2, 1e-5),
        BATCH: (x, w, w, mean, variance, True, 0.1, 1e-5),
        BATCH_ALONE: (x, w, w, True, 0.1, 1e-5),
    }[target]  # fmt: skip
    mode, graph = FakeTensorMode(), fx.Graph()
    nodes: dict[int, fx.Node] = {}
    fake: dict[int, torch.Tensor] = {}
    for one in arguments:
        if isinstance(one, torch.Tensor) and id(one) not in nodes:
            nodes[id(one)] = graph.placeholder("given")
            fake[id(one)] = nodes[id(one)].meta["val"] = mode.from_tensor(one)
    node = graph.call_function(target, tuple(nodes.get(id(one), one) for one in arguments))
    with mode:
        node.meta["val"] = target(*(fake.get(id(one), one) for one in arguments))
    items = [graph.call_function(operator.getitem, (node, k)) for k in range(3)]
    for k, item in enumerate(items):
        item.meta["val"] = node.meta["val"][k]
    correct_statistics(graph)
    real = target(*arguments)
    assert [value.dtype for value in node.meta["val"]] == [value.dtype for value in real]
    assert [item.meta["val"].dtype for item in items] == [value.dtype for value in real[:3]]


def test_a_message_of_them_under_autocast_has_their_bytes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).float().pow(2).mean()

    inputs = (torch.randn(4, 8),)
    step = TrainingStep(Mean(), inputs, lambda number: inputs)
    captured = captured_from(
        step, CaptureOptions("here:step", 4, OptimizerChoice(), 0, autocast="bf16")
    )
    (norm,) = captured.code.graph.find_nodes(op="call_function", target=LAYER)
    sizes = {captured.layouts[item.name].wire_bytes for item in norm.users if item.args[1] > 0}
    assert sizes == {4 * 4}


def test_ranks_send_what_a_group_normalisation_gives_either_way() -> None:
    """A transport of the tests takes only messages of the bytes that were promised."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3), nn.Flatten())

    def batches(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.Generator().manual_seed(number)
        return torch.randn(4, 3, 8, 8, generator=drawn), torch.arange(4)

    step = TrainingStep(model, batches(0), batches, nn.CrossEntropyLoss())
    captured = captured_from(
        step, CaptureOptions("here:step", 4, OptimizerChoice(), 0, autocast="bf16")
    )
    graph, cluster = captured.operators, cluster_of(3)
    alone, _ = train(captured, on_one_device(captured))
    for seed in range(4):
        where = random_devices(graph, cluster, seed)
        assert train(captured, placement_of(graph, cluster, where, order_seed=seed))[0] == alone
