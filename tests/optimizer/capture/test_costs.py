"""Modelled costs: FLOPs and bytes of operators, and the times that follow from them."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.profile.devices import DEVICES
from placewire.optimizer.profile.modelled import (
    kind_of,
    model_error,
    modelled_seconds,
    with_modelled_seconds,
)
from tests.models import costly

BATCH = 16


@pytest.fixture(scope="module")
def alexnet() -> CapturedStep:
    choice = OptimizerChoice("sgd", 0.1, {"momentum": 0.9})
    return capture("placewire.examples.models.alexnet:training_step", BATCH, choice, 0)


def of_type(captured: CapturedStep, kind: str) -> list[tuple[Any, int, int]]:
    """Returns (node, flops, traffic) of every operator of that type."""
    graph = captured.operators
    return [
        (captured.nodes[graph.ids[i]], int(graph.flops[i]), int(graph.traffic_bytes[i]))
        for i in range(graph.operator_count)
        if graph.types[i] == kind
    ]


def test_products_count_multiplications_and_additions(alexnet: CapturedStep) -> None:
    found = of_type(alexnet, "aten.mm.default")
    assert found
    for node, flops, traffic in found:
        a, b = (source.meta["val"].shape for source in node.args)
        assert flops == 2 * a[0] * a[1] * b[1]
        assert traffic == 4 * (a[0] * a[1] + b[0] * b[1] + a[0] * b[1])


def test_a_split_convolution_backward_counts_each_half_once(alexnet: CapturedStep) -> None:
    forward = {
        node.args[1].name: (flops, node.meta["val"].shape)
        for node, flops, _ in of_type(alexnet, "aten.convolution.default")
    }
    halves = of_type(alexnet, "aten.convolution_backward.default")
    assert len(halves) == 2 * len(forward) - 1  # the gradient of the batch is not computed
    for node, flops, traffic in halves:
        gradient, source, weight = (argument.meta["val"] for argument in node.args[:3])
        wanted_flops, output = forward[node.args[2].name]
        assert gradient.shape == output
        assert flops == wanted_flops
        read = weight if node.args[-1][0] else source
        written = source if node.args[-1][0] else weight
        bias = 0 if node.args[-1][0] else weight.shape[0]
        assert traffic == 4 * (gradient.numel() + read.numel() + written.numel() + bias)


def test_elementwise_reads_and_writes_every_element(alexnet: CapturedStep) -> None:
    for node, flops, traffic in of_type(alexnet, "aten.relu.default"):
        count = node.meta["val"].numel()
        assert (flops, traffic) == (count, 8 * count)
    for node, flops, _ in of_type(alexnet, "aten.max_pool2d_with_indices.default"):
        assert flops == prod(node.args[1]) * node.meta["val"][0].numel()


def test_an_update_touches_parameter_gradient_and_state(alexnet: CapturedStep) -> None:
    for node, flops, traffic in of_type(alexnet, "update"):
        count = alexnet.values[alexnet.code.writers[node.name]].numel()
        assert (flops, traffic) == (4 * count, 20 * count)


def test_views_items_and_what_is_there_cost_nothing(alexnet: CapturedStep) -> None:
    graph = alexnet.operators
    free = {"aten.view.default", "aten.t.default", "getitem", "parameter", "input"}
    assert free <= set(graph.types)
    for i, kind in enumerate(graph.types):
        assert (graph.traffic_bytes[i] == 0) == (kind in free), graph.ids[i]


def test_attention_transforms_and_tables() -> None:
    captured = capture("tests.models.costly:training_step", 4, OptimizerChoice(), 0)
    tokens = 4 * costly.LENGTH
    vectors = tokens * costly.HEADS * costly.WIDTH
    ((_, _, gathered),) = of_type(captured, "aten.embedding.default")
    assert gathered == 2 * 4 * vectors + 8 * tokens
    transforms = of_type(captured, "aten._fft_c2c.default")
    assert len(transforms) == 2  # forward and backward
    assert {flops for _, flops, _ in transforms} == {5 * vectors * 4}  # log2 of 16 points
    attention = "aten._scaled_dot_product_flash_attention_for_cpu"
    ((_, forward, _),) = of_type(captured, f"{attention}.default")
    ((_, backward, _),) = of_type(captured, f"{attention}_backward.default")
    # Two products forward; backward two for each of these, and the first one again.
    assert forward == 2 * (2 * vectors * costly.LENGTH)
    assert backward == 5 * (2 * vectors * costly.LENGTH)


def test_fills_read_nothing_and_gathers_what_they_write() -> None:
    captured = capture("tests.models.costly:filling", BATCH, OptimizerChoice(), 0)
    width = costly.WIDTH
    ((_, flops, traffic),) = of_type(captured, "aten.full_like.default")
    assert (flops, traffic) == (0, 4 * BATCH * width)
    ((_, flops, traffic),) = of_type(captured, "aten.new_full.default")
    assert (flops, traffic) == (0, 4 * width)
    ((_, flops, traffic),) = of_type(captured, "aten.rand.default")
    assert (flops, traffic) == (10 * width, 4 * width)
    ((_, _, gathered),) = of_type(captured, "aten._unsafe_index.Tensor")
    assert gathered == 2 * 4 * 2 * width + 8 * 2  # two rows, read and written, and two indices
    assert kind_of("aten._unsafe_index.Tensor") == kind_of("aten.index.Tensor") == "gather"


def rows() -> OperatorGraph:
    def row(name: str, kind: str, flops: int, traffic: int) -> OperatorRow:
        return OperatorRow(name, kind, {"cpu": 1e-3}, flops=flops, traffic_bytes=traffic)

    return build_graph(
        [
            row("a", "aten.mm.default", 10**12, 10**6),
            row("b", "aten.relu.default", 10, 10**9),
            row("c", "aten.t.default", 0, 0),
            row("d", "aten.convolution.default", 10**12, 0),
        ],
        [TensorRow("a", ("b",), 4)],
    )


def test_a_time_is_the_launch_and_the_slower_of_computing_and_moving() -> None:
    a100 = DEVICES["a100"]
    seconds = modelled_seconds(rows(), a100)
    reached = a100.reached
    assert seconds[0] == pytest.approx(
        a100.launch_seconds + 1e12 / (19.5e12 * reached["matmul"].compute)
    )
    assert seconds[1] == pytest.approx(
        a100.launch_seconds + 1e9 / (2039e9 * reached["elementwise"].bandwidth)
    )
    assert seconds[2] == 0
    # Convolutions run in TF32 by default, products do not.
    assert seconds[3] == pytest.approx(
        a100.launch_seconds + 1e12 / (156e12 * reached["convolution"].compute)
    )


def test_modelled_types_stand_beside_those_that_are_there() -> None:
    graph = with_modelled_seconds(rows(), ["t4", "h200"])
    assert graph.device_types == ("cpu", "t4", "h200")
    assert graph.structure_hash == rows().structure_hash
    assert (graph.seconds[:, 0] == 1e-3).all()
    assert (graph.seconds[[0, 1, 3], 2] < graph.seconds[[0, 1, 3], 1]).all()


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten.addmm.default", "matmul"),
        ("aten.convolution_backward.default", "convolution"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "attention"),
        ("aten.native_dropout.default", "random"),
        ("aten.native_dropout_backward.default", "elementwise"),
        ("aten.native_layer_norm_backward.default", "reduction"),
        ("aten.max_pool2d_with_indices.default", "window"),
        ("aten._fft_c2c.default", "transform"),
        ("update", "update"),
        ("aten.gelu.default", "elementwise"),
    ],
)
def test_kinds_of_operators(operator: str, kind: str) -> None:
    assert kind_of(operator) == kind


def test_the_error_of_a_model() -> None:
    measured = np.array([1.0, 2.0, 4.0, 8.0, 0.5])
    modelled = np.array([2.0, 4.0, 8.0, 16.0, 0.0])
    error = model_error(modelled, measured)
    assert error.operators == 4  # the view that is free in the model counts in the sum only
    assert error.sum_error == pytest.approx(30 / 15.5 - 1)
    assert error.median_absolute_relative_error == pytest.approx(1.0)
    assert error.ratio_percentiles == pytest.approx((2, 2, 2))
    assert error.rank_correlation == pytest.approx(1.0)
    turned = model_error(modelled, np.array([8.0, 4.0, 2.0, 1.0, 0.5]))
    assert turned.rank_correlation == pytest.approx(-1.0)
    with pytest.raises(ValueError, match="fewer than two"):
        model_error(modelled, np.zeros(5))


def test_the_command_adds_devices_and_reports_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "g.json", tmp_path / "out.json"
    save_graph(rows(), file)
    command = ["profile", str(file), "--device", "t4", "--device", "cpu-core"]
    assert main([*command, "--out", str(out), "--against", "cpu"]) == 0
    assert load_graph(out).device_types == ("cpu", "t4", "cpu-core")
    said = capsys.readouterr().out
    assert "t4 modelled against cpu: sum " in said and "rank correlation" in said
    assert all(len(line) <= 100 for line in said.splitlines())
    assert main([*command, "--against", "gpu"]) == 3
    assert "no times for 'gpu'; it has times for cpu" in capsys.readouterr().err


def test_a_graph_without_costs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "g.json"
    save_graph(build_graph([OperatorRow("a", "op", {"x": 1.0})], []), file)
    assert main(["profile", str(file), "--device", "t4", "--out", str(tmp_path / "o")]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ") and "neither flops nor traffic_bytes" in said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["m:f", "--device", "t4"], "to model the times of m:f give --batch, --out"),
        (["m:f", "--batch", "4", "--against", "t4"], "m:f is none: check the path"),
        (["m:f", "--batch", "4"], "to measure the times of m:f give --out"),
        (["FILE"], "is a graph file: say which --device"),
        (["FILE", "--device", "t4"], "give --out, or --against"),
        (["FILE", "--device", "t4", "--batch", "4", "--out", "o"], "drop --batch"),
        (["FILE", "--device", "rtx9"], "invalid choice: 'rtx9'"),
    ],
)
def test_half_a_question_exits_2(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "g.json"
    save_graph(rows(), file)
    with pytest.raises(SystemExit) as stopped:
        main(["profile", *(str(file) if word == "FILE" else word for word in more)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
