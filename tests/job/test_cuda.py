"""The CUDA path: capture, profile and one rank, with NCCL initialised. Skipped without a device."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.job.cuda import alone
from benchmarks.job.memory import peaks
from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessages
from placewire.job.placed.device import use_device
from placewire.job.placed.lower import lower
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.placement import Placement
from tests.job.ranks import run_ranks, specs_on_loopback

MODELS = [
    ("placewire.examples.models.alexnet:training_step", 128),
    ("placewire.examples.models.bert:training_step", 8),
]
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device and a CUDA build of torch"
)


def spec_of(placement: Placement, backend: str = "gloo") -> RankSpec:
    (spec,) = specs_on_loopback(
        placement, Path("p"), ("a",), kind="placed", steps=1, backend=backend
    )
    return spec


def captured_on_cuda(model: str, batch: int) -> CapturedStep:
    captured = capture(model, batch, OptimizerChoice(), 0, device_type="cuda")
    assert {value.device.type for value in captured.values.values()} == {"cuda"}
    return captured


def test_a_device_is_what_its_type_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from placewire.optimizer.graph.operator_graph import OperatorRow, build_graph

    monkeypatch.setenv("CUDA_DEVICE_ORDER", "to be put back")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    graph = build_graph([OperatorRow("p", "x", {"cpu:epyc": 1.0, "a100": 1.0})], [])
    assert use_device(spec_of(on := alone(graph, "cpu:epyc")), on) == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(JobError, match="s1/0 is of type 'a100', and this server has 0 CUDA"):
        use_device(spec_of(on := alone(graph, "a100")), on)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert use_device(spec_of(on, "nccl"), on) == "cuda" and chosen == [0]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    two = spec_of(on).model_copy(update={"world_size": 2})
    with pytest.raises(JobError, match="gloo carries messages of CPU devices"):
        use_device(two, on)


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch"), MODELS)
def test_a_profile_on_cuda_sums_to_the_step(model: str, batch: int) -> None:
    from placewire.optimizer.profile.measure import measure
    from placewire.optimizer.profile.sampling import Sampling

    captured = captured_on_cuda(model, batch)
    profile = measure(captured, 1, Sampling(), lambda line: None)
    assert (profile.warm_up_steps, profile.samples) == (5, 45)
    assert profile.sum_of_medians_seconds == pytest.approx(profile.whole_step_seconds, rel=0.3)
    assert profile.workspace_bytes.sum() > 0
    assert profile.program_bytes is not None and profile.program_bytes > 0


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch"), MODELS)
def test_one_rank_trains_on_cuda_with_nccl(model: str, batch: int) -> None:
    import torch.distributed as dist

    from placewire.job.transport.nccl import NcclTransport

    captured = captured_on_cuda(model, batch)
    messages = RankMessages({}, ())
    transport = NcclTransport(messages, torch.device("cuda", 0), 1e9)
    transport.connect(dist.HashStore(), 0, 1, ("lo",), 60)  # type: ignore[attr-defined]
    placement = alone(captured.operators, "gpu")
    program = lower(captured, placement, "s1/0", messages, transport)
    before = {name: value.clone() for name, value in program.held.items()}
    losses = []
    with torch.no_grad():
        for step in range(5):
            program.tell(step)
            batches = captured.batches(step)
            transport.begin_step()
            inputs = (batches[position] for position in program.inputs)
            losses.append(program.module(*inputs)["loss"])
            transport.end_step()
    transport.close()
    assert all(loss.device.type == "cuda" and bool(torch.isfinite(loss)) for loss in losses)
    assert any(not torch.equal(value, before[name]) for name, value in program.held.items())


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch"), MODELS)
def test_a_rank_on_cuda_takes_the_memory_that_is_predicted(
    model: str, batch: int, tmp_path: Path
) -> None:
    graph = captured_on_cuda(model, batch).operators
    graph = graph.with_seconds({"gpu": np.full(graph.operator_count, 1e-4)})
    placement = alone(graph, "gpu")
    fields = {"kind": "placed", "model": model, "batch": batch, "backend": "nccl", "steps": 5}
    (rank,) = run_ranks(placement, tmp_path, (), seconds=300, forked=False, **fields)
    assert len(rank.losses) == 5
    taken = rank.finished.step_memory_bytes
    # Without a profile the prediction has no workspace, and so none of cuDNN's.
    assert taken is not None and taken > 0.8 * peaks(graph, placement)["s1/0"]
