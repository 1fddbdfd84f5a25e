"""Features of a step: does the captured step train as plain PyTorch, to the last bit?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.layer_scalars import block_of
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.models import features
from tests.optimizer.capture.eager import assert_trains_as_eager, train_captured, train_eager

HARD = "tests.models.hard:without_dropout"
ADAMW = OptimizerChoice("adamw", 1e-2)
CLIPPED = OptimizerChoice("adamw", 1e-2, clip_norm=0.1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", features.FEATURES)
def test_features_of_pytorch_train_as_eager(name: str) -> None:
    assert_trains_as_eager(f"tests.models.features:{name}", ADAMW)


@pytest.mark.parametrize("name", ["loops", "buffers", "layouts", "own_function"])
def test_all_at_once_trains_as_eager(name: str) -> None:
    assert_trains_as_eager(
        f"tests.models.features:{name}",
        CLIPPED,
        batch=9,
        accumulate=3,
        autocast="bf16",
    )


def test_a_frozen_layer_has_no_update() -> None:
    ids = capture("tests.models.features:several_losses", 4, ADAMW, 0).operators.ids
    assert "parameter_frozen_weight" in ids and "update_frozen_weight" not in ids
    assert not any("unused" in i for i in ids)


def test_gradients_get_the_strides_of_their_parameters() -> None:
    """The fused kernels go through memory, so that other strides would be silently wrong."""
    captured = capture("tests.models.features:layouts", 4, ADAMW, 0)
    turned = captured.nodes["update_turned"].all_input_nodes
    assert [captured.layouts[node.name].stride for node in turned] == 2 * [(4, 1)]
    assert turned[1].target is torch.ops.aten.clone.default


@pytest.mark.parametrize(
    "choice",
    [
        CLIPPED,
        OptimizerChoice("adamw", 1e-2, clip_norm=1e6),
        OptimizerChoice("sgd", 0.1, {"momentum": 0.9}, clip_norm=0.05),
    ],
    ids=["adamw", "not reached", "sgd with momentum"],
)
def test_clipping_is_that_of_clip_grad_norm(choice: OptimizerChoice) -> None:
    captured = assert_trains_as_eager(HARD, choice, batch=3)
    graph = captured.operators
    (coefficient,) = (i for i, kind in enumerate(graph.types) if kind == "clip_coefficient")
    updates = [i for i, kind in enumerate(graph.types) if kind == "update"]
    readers = graph.tensor_consumers(int(graph.output_tensors(coefficient)[0])).tolist()
    assert sorted(readers) == updates
    assert graph.workspace_bytes[updates].sum() == sum(
        captured.values[captured.code.writers[graph.ids[i]]].nbytes for i in updates
    )


@pytest.mark.parametrize(
    "schedule",
    [
        LearningRateSchedule("cosine", warmup_steps=2, total_steps=7, final=0.1),
        LearningRateSchedule("step", every_steps=2, decay=0.3),
    ],
)
def test_scheduled_rates_are_those_of_torch(schedule: LearningRateSchedule) -> None:
    for choice in (
        OptimizerChoice("adamw", 1e-2, schedule=schedule),
        OptimizerChoice("sgd", 0.1, {"momentum": 0.9}, schedule=schedule),
    ):
        assert_trains_as_eager("tests.models.features:in_place", choice)


def test_the_norms_of_a_layer_are_one_tensor() -> None:
    """A message of 4 bytes costs as much as a larger one, so at most one per layer is sent."""
    captured = capture("placewire.examples.models.bert:training_step_small", 2, CLIPPED, 0)
    kinds = captured.operators.types
    assert kinds.count("aten.linalg_vector_norm.default") == kinds.count("update")
    stacks = [i for i in captured.operators.ids if i.startswith("norms_")]
    assert [s for s in stacks if "layers" in s] == ["norms_model_layers_0", "norms_model_layers_1"]
    assert len(stacks) < kinds.count("update") / 3
    names = captured.nodes["norms_model_layers_0"].args[0]
    assert isinstance(names, list) and len(names) == 16


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("model.layers.3.attention.query.weight", "model.layers.3"),
        ("model.head.bias", "model.head"),
        ("scale", "scale"),
        ("a.0.b.1.weight", "a.0"),
    ],
)
def test_blocks_are_layers(name: str, block: str) -> None:
    assert block_of(name) == block


def test_accumulated_gradients_are_those_of_eager_loops() -> None:
    captured = assert_trains_as_eager(HARD, ADAMW, batch=8, accumulate=4)
    ids = captured.operators.ids
    assert [i for i in ids if i.startswith("input_1_")] == [f"input_1_m{m}" for m in range(4)]
    # Each buffer is written once, by the last micro-batch; parameters are updated once.
    assert sum(i.startswith("copy_") for i in ids) == 3
    assert (
        sum(i.startswith("update_") for i in ids)
        == sum(i.startswith("parameter_") for i in ids) - 1
    )
    assert captured.operators.notes["accumulate"] == 4


def test_micro_batches_run_side_by_side() -> None:
    """Without buffers only the sums of one micro-batch wait for another."""
    captured = capture("placewire.examples.models.mlp:training_step", 8, ADAMW, 0, accumulate=2)
    below = {"input_0_m0", "input_1_m0"}
    for node in captured.analysis.nodes:
        if any(source.name in below for source in node.all_input_nodes):
            below.add(node.name)
    sums = {i for i in captured.operators.ids if i.startswith("gradient_")}
    assert len(sums) == 10 and sums <= below
    assert not [name for name in below - sums if name.endswith("_m1")]
    views = [n.name for n in captured.analysis.nodes if n.target is torch.ops.aten.t.default]
    assert views and all(name.endswith(("_m0", "_m1")) for name in views), "of weights, too"


def test_a_count_of_batches_and_averages_are_of_no_micro_batch() -> None:
    model = "placewire.examples.models.resnet50:training_step_small"
    graph = capture(model, 4, ADAMW, 0, accumulate=2).operators
    source, target, _ = graph.edges
    part = graph.micro_batch
    between = (part[source] >= 0) & (part[target] >= 0) & (part[source] != part[target])
    assert not between.any()
    counts = [i for i, name in enumerate(graph.ids) if name.startswith("copy_") and "num_b" in name]
    assert len(counts) > 5
    made = graph.tensor_producer[np.concatenate([graph.input_tensors(i) for i in counts])]
    assert (part[made] == -1).all()
    averages = [i for i, name in enumerate(graph.ids) if name.startswith("average_")]
    assert len(averages) == 2 * len(counts) and (part[averages] == -1).all()


@pytest.mark.parametrize("name", ["scaled", "counted"])
def test_what_a_micro_batch_reads_of_a_buffer_is_of_a_micro_batch(name: str) -> None:
    """Pipelines run what several micro-batches share before all of them, or after."""
    captured = assert_trains_as_eager(f"tests.models.counters:{name}", ADAMW, batch=4, accumulate=2)
    graph = captured.operators
    part = graph.micro_batch
    needs = part >= 0
    for i in graph.topological_order.tolist():
        needs[i] |= needs[graph.tensor_producer[graph.input_tensors(i)]].any()
    source, target, _ = graph.edges
    assert not ((part[source] < 0) & needs[source] & (part[target] >= 0)).any()
    changing = [i for i, name in enumerate(graph.ids) if name.startswith("buffer_")]
    assert changing and (part[target[np.isin(source, changing)]] >= 0).any()


def test_copies_of_a_node_have_memory_and_dropout_of_their_own() -> None:
    path = "placewire.examples.models.mlp:training_step"
    one, two = (capture(path, 8 * n, ADAMW, 0, accumulate=n) for n in (1, 2))
    assert len(two.analysis.random) == 2 * len(one.analysis.random)
    assert len(set(two.analysis.random.values())) == len(two.analysis.random)
    for name in ("native_dropout", "addmm", "mm"):
        (of_one,) = (i for i in one.operators.ids if i == name)
        for m in range(2):
            assert (
                two.operators.activation_bytes[two.operators.index_of[f"{name}_m{m}"]]
                == (one.operators.activation_bytes[one.operators.index_of[of_one]])
            )
    held = [
        g.weight_bytes[np.array(g.types) == "parameter"].sum()
        for g in (one.operators, two.operators)
    ]
    assert held[0] == held[1]


@pytest.mark.parametrize(
    ("path", "batch", "count", "words"),
    [
        (HARD, 6, 4, "job.batch 6 cannot be cut into job.accumulate 4"),
        ("tests.models.features:with_a_mask", 4, 2, "input 1 is of shape (6, 6)"),
    ],
)
def test_batches_that_do_not_split_are_refused(
    path: str, batch: int, count: int, words: str
) -> None:
    with pytest.raises(CaptureError) as raised:
        capture(path, batch, ADAMW, 0, accumulate=count)
    assert words in str(raised.value) and "job.accumulate" in str(raised.value)


def test_autocast_computes_in_the_small_type_and_keeps_parameters() -> None:
    captured = assert_trains_as_eager(HARD, ADAMW, batch=3, autocast="bf16")
    kinds = {
        n.target: captured.layouts[n.name].dtype
        for n in captured.nodes.values()
        if n.name in captured.layouts
    }
    assert kinds[torch.ops.aten.mm.default] is torch.bfloat16
    assert {v.dtype for v in captured.code.parameters.values()} == {torch.float32}
    for update in captured.code.writers:
        if update.startswith("update_"):
            gradient = captured.nodes[update].all_input_nodes[1]
            assert captured.layouts[gradient.name].dtype is torch.float32
    plain = capture(HARD, 3, ADAMW, 3)
    assert captured.operators.ids[:3] == plain.operators.ids[:3]
    assert captured.operators.structure_hash != plain.operators.structure_hash


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("conditional", "as_python_chooses"),
        ("conditional_in_conditional", "as_python_chooses_twice"),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_conditional_is_one_operator_that_takes_either_side(
    name: str, reference: str, accumulate: int
) -> None:
    captured = capture(f"tests.models.features:{name}", 4, ADAMW, 3, accumulate)
    expected = train_eager(f"tests.models.features:{reference}", ADAMW, 6, 4, 3, accumulate)
    trained = train_captured(captured, 6)
    assert trained.losses == expected.losses
    assert all(torch.equal(v, expected.values[k]) for k, v in trained.values.items())
    graph = captured.operators
    conditionals = [i for i, kind in enumerate(graph.types) if kind == "conditional"]
    assert len(conditionals) == 2 * accumulate
    assert (graph.flops[conditionals] > 0).all() and (graph.workspace_bytes[conditionals] > 0).any()


def test_both_sides_of_the_conditional_are_taken() -> None:
    start = capture("tests.models.features:conditional", 4, ADAMW, 3).values
    trained = train_captured(
        capture("tests.models.features:conditional", 4, OptimizerChoice("sgd", 0.1), 3),
        2,
    )
    for side in ("one", "other"):
        assert not torch.equal(trained.values[f"{side}_weight"], start[f"parameter_{side}_weight"])


def test_what_a_conditional_computes_is_part_of_the_structure() -> None:
    one, other = (
        capture(f"tests.models.features:{name}", 4, ADAMW, 0).operators.structure_hash
        for name in ("conditional", "conditional_of_another_side")
    )
    assert one != other


def test_random_numbers_in_a_conditional_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"features.py.*inside torch.cond"):
        capture("tests.models.features:dropping_conditional", 4, ADAMW, 0)
