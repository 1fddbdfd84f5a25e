"""Pipelines of a small chain, by hand, and of captured models."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from placewire.optimizer.bounds.load import share_of_load
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.peers.local_sums import Staged, with_local_sums
from placewire.optimizer.peers.peer import PeerStep
from placewire.optimizer.peers.pipelines import pipeline_steps
from placewire.optimizer.peers.step_parts import step_parts
from placewire.optimizer.problem import Problem
from tests.optimizer.cases import cluster
from tests.optimizer.peers.steps import (
    BACKWARD,
    FORWARD,
    LOSS,
    MODELS,
    UPDATE,
    WEIGHT,
    captured,
    chain,
    gpus,
)

AT_ONCE = 1e17


def best(steps: Iterable[PeerStep]) -> dict[str, PeerStep]:
    found: dict[str, PeerStep] = {}
    for step in sorted(steps, key=lambda step: step.step_seconds):
        found.setdefault(step.name, step)
    return found


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_gradients_of_a_weight_of_two_stages_meet_once_in_a_step(parts: int) -> None:
    """The first layer runs again after the last one, so that the last stage has gradients of it."""
    graph = chain(parts, again=True)
    found = best(pipeline_steps(graph, cluster(2, (AT_ONCE,))))
    for name in {"gpipe", "1f1b"} & found.keys():
        assert WEIGHT < found[name].sent_bytes < WEIGHT + parts * 1000 + 1
    assert "gpipe" in found


def test_gradients_of_two_weights_that_have_a_part_in_common_stay_whole() -> None:
    """Both have g of the first stage, where their sums are, and each has an h of the second one."""
    rows, reads = list[OperatorRow](), dict[str, list[str]]()

    def operator(name: str, kind: str, *made: str) -> None:
        _, inside, number = name.partition("_m")
        rows.append(
            OperatorRow(name, kind, {"cpu": 1.0}, micro_batch=int(number) if inside else None)
        )
        for one in made:
            reads.setdefault(one, []).append(name)

    for weight in "WV":
        operator(weight, "parameter")
    for m in range(2):
        operator(f"f_m{m}", "mm", "W", "V")
        operator(f"l_m{m}", "loss", f"f_m{m}")
        for name in ("g", "hW", "hV"):
            operator(f"{name}_m{m}", "mm", f"f_m{m}")
        for weight in "WV":
            operator(f"a{weight}_m{m}", "aten.add.Tensor", f"g_m{m}", f"h{weight}_m{m}")
    operator("loss", "mean", "l_m0", "l_m1")
    for weight in "WV":
        operator(f"s{weight}", "aten.add.Tensor", f"a{weight}_m0", f"a{weight}_m1")
        operator(f"u{weight}", "update", f"s{weight}")
    tensors = [TensorRow(name, tuple(readers), 4) for name, readers in reads.items()]
    graph = build_graph(rows, tensors, device_types=("cpu",), notes={"loss": "loss"})
    device = np.array([int(name.startswith("h")) for name in graph.ids])
    staged = with_local_sums(Staged(graph, device, device, graph.micro_batch), step_parts(graph))
    made = {
        name: {staged.graph.ids[k] for k in
               staged.graph.tensor_producer[staged.graph.input_tensors(i)].tolist()}
        for name, i in graph.index_of.items()
    }  # fmt: skip
    for weight in "WV":
        assert made[f"s{weight}"] == {"g_m0", "g_m1"}
        assert made[f"a{weight}_m1"] == {f"h{weight}_m0", f"h{weight}_m1"}
        assert made[f"a{weight}_m0"] == {f"s{weight}", f"a{weight}_m1"}
        assert made[f"u{weight}"] == {f"a{weight}_m0"}
        assert staged.device[graph.index_of[f"a{weight}_m1"]] == 1
        assert staged.device[graph.index_of[f"a{weight}_m0"]] == 0


@pytest.mark.parametrize(
    ("devices", "parts"),
    [
        (4, 4),
        *(pytest.param(*of, marks=pytest.mark.thorough) for of in ((2, 4), (2, 8), (4, 8))),
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_every_schedule_of_every_model_runs_and_is_no_better_than_its_work(
    model: str, parts: int, devices: int
) -> None:
    graph = captured(model, parts)
    found = best(pipeline_steps(graph, gpus(devices)))
    assert set(found) == {"gpipe", "1f1b", "interleaved-1f1b"}
    bound = float(share_of_load(Problem(graph, gpus(devices)).seconds).sum())
    for step in found.values():
        assert bound <= step.step_seconds < np.inf
        assert step.sent_bytes > 0 and step.fits


def test_the_step_of_a_chain_is_that_of_its_stages() -> None:
    """Two layers a stage: six turns of a stage's work, and one in which the pipeline fills."""
    found = best(pipeline_steps(chain(6), cluster(2, (AT_ONCE,))))
    turn = 2 * (FORWARD + BACKWARD) / 1e3
    # Losses, sums of gradients and updates come on top.
    more = (6 * LOSS + 2 * 5 * 0.1 + 2 * UPDATE + 1) / 1e3
    for name in ("gpipe", "1f1b"):
        assert 7 * turn < found[name].step_seconds < 7 * turn + more
    # Two pieces of a device halve what it idles.
    assert 6.5 * turn < found["interleaved-1f1b"].step_seconds < found["1f1b"].step_seconds


@pytest.mark.parametrize("devices", [2, 4])
def test_a_chain_sends_results_between_layers_and_no_weight(devices: int) -> None:
    """Each border sends 1000 bytes a micro-batch forth and as many back; weights have 120,000."""
    found = pipeline_steps(chain(8, 16), cluster(devices, (AT_ONCE,)))
    for step in found:
        borders = {"2x2": 2, "2x3": 3, "2x4": 4, "4x2": 4, "4x3": 6, "4x4": 8}
        most = 2 * borders.get(step.words.split()[0], 1)
        assert 0 < step.sent_bytes <= most * 8 * 1000, step


def test_1f1b_needs_less_memory_than_gpipe() -> None:
    graph = chain(8)
    graph.activation_bytes[graph.activation_bytes > 0] = 1_000_000
    found = best(pipeline_steps(graph, cluster(2, (AT_ONCE,))))
    assert found["1f1b"].memory_bytes < 0.75 * found["gpipe"].memory_bytes


@pytest.mark.parametrize("model", ["gpt2", pytest.param("resnet50", marks=pytest.mark.thorough)])
def test_clipping_sends_norms_and_no_gradients(model: str) -> None:
    """The norm of a gradient is taken where the gradient is."""
    graphs = [captured(model, 4, norm) for norm in (None, 1.0)]
    plain, clipped = (best(pipeline_steps(graph, gpus(4))) for graph in graphs)
    for name in ("gpipe", "1f1b"):
        assert clipped[name].sent_bytes < 1.2 * plain[name].sent_bytes
        assert clipped[name].step_seconds < 1.3 * plain[name].step_seconds


def test_a_stage_runs_elsewhere_where_its_device_cannot() -> None:
    graph = chain(4)
    seconds = graph.seconds.copy()
    for m in range(4):
        seconds[graph.index_of[f"f3_m{m}"], 1] = np.inf
    graph = graph.with_seconds({"cpu": seconds[:, 0], "fast": seconds[:, 1]})
    found = pipeline_steps(graph, cluster(2, (AT_ONCE,), types=["fast", "cpu"]))
    assert found and all(np.isfinite(step.step_seconds) for step in found)


def test_in_one_server_no_nic_sends() -> None:
    found = pipeline_steps(chain(4), cluster(1, devices=2, intra=AT_ONCE))
    assert {step.sent_bytes for step in found} == {0.0}


def test_two_devices_of_a_server_are_neighbours_in_the_pipeline() -> None:
    """Of three borders between four stages one is between the servers."""
    alone, paired = (
        best(pipeline_steps(chain(4), cluster(servers, (AT_ONCE,), devices=devices, intra=AT_ONCE)))
        for servers, devices in ((4, 1), (2, 2))
    )
    assert 0 < paired["1f1b"].sent_bytes <= alone["1f1b"].sent_bytes
    assert paired["1f1b"].step_seconds == pytest.approx(alone["1f1b"].step_seconds)
