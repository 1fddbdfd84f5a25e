"""Views of what micro-batches share: which are made in each, and that the step stays the same."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import nn

from placewire.optimizer.capture import micro_batches
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.nodes import MICRO_BATCH, storage_of
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import capture, captured_from
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.variants import Autocast
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.capture.eager import train_captured
from tests.optimizer.cases import cluster

ADAMW = OptimizerChoice("adamw", 1e-2)
COUNT = 2
MODELS = ("bert", "gpt2", "alexnet", "transformer", "mixture")


def captured(model: str, autocast: Autocast | None = None, count: int = COUNT) -> CapturedStep:
    path = f"placewire.examples.models.{model}:training_step_small"
    return capture(path, 4, ADAMW, 3, count, autocast)


@pytest.fixture
def views_made_once(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """For as long as it is not undone, views of shared memory are made once and sent."""
    monkeypatch.setattr(micro_batches, "views_to_repeat", lambda common: frozenset())
    return monkeypatch


def sent_at_most(graph: OperatorGraph) -> int:
    """The bytes that leave the shared operators where each micro-batch has a device of its own."""
    return sum(
        int(graph.tensor_bytes[e])
        for e in np.flatnonzero(graph.micro_batch[graph.tensor_producer] < 0).tolist()
        for m in {*graph.micro_batch[graph.tensor_consumers(e)].tolist()}
        if m >= 0
    )


def on_one_device(graph: OperatorGraph) -> Problem:
    seconds = {"cpu": np.ones(graph.operator_count)}
    return Problem(graph.with_seconds(seconds), cluster(1), sharing="job")


@pytest.mark.parametrize("autocast", [None, "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_micro_batches_share_no_two_tensors_of_one_memory(
    model: str, autocast: Autocast | None
) -> None:
    step = captured(model, autocast)
    shared: dict[object, list[str]] = defaultdict(list)
    for node in step.analysis.nodes:
        parts = {MICRO_BATCH in user.meta for user in node.users}
        if MICRO_BATCH not in node.meta and True in parts:
            shared[storage_of(node)].append(node.name)
    several = [names for names in shared.values() if len(names) > 1]
    assert shared and not several


@pytest.mark.parametrize("autocast", [None, "bf16"])
def test_less_is_sent_no_more_is_held_and_nothing_is_computed_otherwise(
    autocast: Autocast | None, views_made_once: pytest.MonkeyPatch
) -> None:
    before = captured("bert", autocast)
    views_made_once.undo()
    after = captured("bert", autocast)
    old, new = before.operators, after.operators
    assert sent_at_most(new) < 0.75 * sent_at_most(old)
    for held in ("weight_bytes", "activation_bytes", "workspace_bytes", "flops", "traffic_bytes"):
        assert getattr(new, held).sum() == getattr(old, held).sum(), held
    peaks = []
    for graph in (old, new):
        order = -graph.position.astype(np.float64)
        problem = on_one_device(graph)
        timeline = simulate(problem, np.zeros(graph.operator_count, dtype=np.int64), order)
        peaks.append(int(timeline.peak_memory_bytes[0]))
    assert peaks[1] <= peaks[0]
    one, other = train_captured(before, 3), train_captured(after, 3)
    assert one.losses == other.losses
    assert all(torch.equal(value, other.values[name]) for name, value in one.values.items())


def test_an_update_waits_for_all_that_read_a_view_of_its_weight() -> None:
    step = captured("bert")
    graph, nodes = step.operators, step.nodes
    above: dict[str, set[str]] = {}
    for i in graph.topological_order.tolist():
        made = [graph.ids[j] for j in graph.tensor_producer[graph.input_tensors(i)].tolist()]
        above[graph.ids[i]] = set(made).union(*(above[name] for name in made))
    read = 0
    for writer, weight in step.code.writers.items():
        views = [user for user in nodes[weight].users if user.target is torch.ops.aten.t.default]
        for view in views:
            read += len(view.users)
            assert {user.name for user in view.users} <= above[writer]
    assert read >= 2 * COUNT


class Parts(nn.Module):
    """Reads the first rows of a table alone, three parts of a weight, a weight as places in memory,
    a sum over a turned weight, and a view of a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 8))
        self.joined = nn.Parameter(torch.randn(24, 8))
        self.places = nn.Parameter(torch.randn(8, 8))
        self.turned = nn.Parameter(torch.randn(8, 8))
        self.constant = nn.Buffer(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.table[:8].sum(0)
        for part in self.joined.chunk(3):
            x = x @ part
        x = x @ self.places.as_strided((8, 8), (1, 8)) + self.constant.unsqueeze(0)
        turned = self.turned.t()
        return (x @ turned * torch.logsumexp(turned, 0)).square().mean()


def test_which_views_each_micro_batch_makes() -> None:
    torch.manual_seed(0)
    batch = (torch.randn(4, 8),)
    model = Parts()
    step = captured_from(
        TrainingStep(model, batch, lambda number: batch),
        CaptureOptions("model", 4, ADAMW, 3, accumulate=COUNT),
    )
    aten = torch.ops.aten
    repeated: dict[object, set[bool]] = defaultdict(set)
    for node in step.analysis.nodes:
        repeated[node.target].add(MICRO_BATCH in node.meta)
    of_places = {n for n in step.analysis.nodes if n.target is aten.as_strided.default}
    assert repeated[aten.slice.Tensor] == {False}, "a part of a table is sent alone"
    assert repeated[aten.split.Tensor] == {True}, "the parts are no less than the whole"
    (places,) = step.nodes["parameter_places"].users.keys() & of_places
    assert MICRO_BATCH not in places.meta, "what names places is sent"
    of_constants = [
        n for n in step.analysis.nodes if {s.op for s in n.all_input_nodes} == {"get_attr"}
    ]
    turned = {MICRO_BATCH in n.meta for n in of_constants if n.target is aten.unsqueeze.default}
    assert turned == {True}, "each rank keeps a constant"
    assert repeated[aten.t.default] == {True, False}, "what is computed once reads its own view"
    assert repeated[aten.logsumexp.default] == {False}


def test_a_single_micro_batch_makes_views_once(views_made_once: pytest.MonkeyPatch) -> None:
    before = captured("bert", count=1)
    views_made_once.undo()
    assert captured("bert", count=1).operators.structure_hash == before.operators.structure_hash
