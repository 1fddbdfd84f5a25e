"""Ranks validate between steps as eager PyTorch does, to the last bit, and train on unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.checkpoint import CheckpointSpec
from placewire.job.contract.specification import Finished, Resumed, Validated, ValidationSpec
from placewire.job.errors import JobError
from placewire.job.placed.validation_memory import most_bytes, refuse_what_does_not_fit
from placewire.job.placed.validation_placement import (
    fields_of,
    validation_placement,
)
from placewire.optimizer.capture import shards
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.protocol import ModelWithLoss, load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.placement import Placement
from tests.job.eager_validated import Means, trained_and_validated
from tests.job.lazy_network import Mailbox, MailboxTransport, run_step
from tests.job.lazy_training import program_of, with_own_values
from tests.job.ranks import Rank, run_ranks, start_ranks
from tests.job.test_checkpoint import ADAMW, spread
from tests.optimizer.capture.eager import optimizer_of

MODEL = "tests.models.validated:training_step"
CHOICE = OptimizerChoice("adamw", 1e-2)
BATCH, SEED, STEPS, BATCHES = 4, 3, 5, 2
EVERY = 2


@pytest.fixture(scope="module", autouse=True)
def as_on_ranks() -> Iterator[None]:
    """One thread, and attention as it is in training: no graph has PyTorch's fused way for
    evaluation, whose last bits differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)
    torch.set_num_threads(before)


def eager(model: str, accumulate: int) -> tuple[list[float], Means]:
    """Returns the losses of the training, and by steps done validation's loss and accuracy."""
    found = trained_and_validated(
        model, CHOICE, BATCH, SEED, steps=STEPS, every=EVERY, batches=BATCHES,
        accumulate=accumulate,
    )  # fmt: skip
    return found.losses, found.means


def options(accumulate: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "kind": "placed", "model": MODEL, "batch": BATCH, "seed": SEED, "steps": STEPS,
        "accumulate": accumulate, "optimizer": ADAMW,
        "validation": ValidationSpec(every=EVERY, batches=BATCHES), **more,
    }  # fmt: skip


def validated(ranks: list[Rank]) -> Means:
    told = [e for rank in ranks for e in rank.events if isinstance(e, Validated)]
    assert all(one.batches == BATCHES and one.seconds > 0 for one in told)
    assert len({one.rank for one in told}) == 1
    return {one.step: (float(one.loss or 0), one.metrics["accuracy"]) for one in told}


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_two_and_three_ranks_validate_as_pytorch(tmp_path: Path, accumulate: int) -> None:
    losses, expected = eager(MODEL, accumulate)
    assert [*expected] == [2, 4, 5] and len(set(expected.values())) == 3
    captured = capture(MODEL, BATCH, CHOICE, SEED, accumulate)
    for devices in (1, 2, 3):
        placement = spread(captured, devices)
        # One rank captures the step itself.
        asked = options(accumulate, captured_once=devices > 1)
        ranks = run_ranks(placement, tmp_path / str(devices), **asked)
        assert validated(ranks) == expected
        assert [loss for rank in ranks for loss in rank.losses] == losses
        for rank in ranks:
            (finished,) = [e for e in rank.events if isinstance(e, Finished)]
            planned = sum(m.bytes for m in placement.messages if m.source == rank.spec.device)
            # What validations send is not counted as a step's.
            assert sum(one.bytes for one in finished.traffic) == STEPS * planned


@pytest.mark.slow
def test_a_resumed_job_validates_as_one_that_was_never_interrupted(tmp_path: Path) -> None:
    _, expected = eager(MODEL, 1)
    captured = capture(MODEL, BATCH, CHOICE, SEED)
    kept = CheckpointSpec(folder=str(tmp_path / "kept"), every=3)
    asked = options(checkpoint=kept, captured_once=True)
    run_ranks(spread(captured, 2), tmp_path / "first", **asked | {"steps": 3})
    ranks = run_ranks(spread(captured, 3), tmp_path / "second", **asked)
    assert [e.step for rank in ranks for e in rank.events if isinstance(e, Resumed)] == [3]
    assert validated(ranks) == {step: expected[step] for step in (4, 5)}


def lazily_validated(captured: CapturedStep, placement: Placement, steps: int) -> list[float]:
    """Trains on ranks in this process, then validates with their values. Returns the losses."""
    box, validating = Mailbox(), Mailbox()
    training, forward = [], []
    placed = validation_placement(captured, placement)
    for device in placement.devices_used:
        own = captured.with_values(with_own_values(captured).code)
        transport, other = MailboxTransport(box), MailboxTransport(validating)
        training.append((program_of(own, placement, device, transport), transport))
        assert own.validation is not None
        program = program_of(own.validation, placed, device, other, placement.devices_used)
        forward.append((program, other))
    for number in range(steps):
        run_step(box, training, captured.batches(number), number)
    assert captured.validation is not None
    batch = captured.validation.batches(0)
    count = len(captured.code.inputs and load_training_step(MODEL, BATCH, SEED).example_inputs)
    parts = [batch[k : k + count] for k in range(0, len(batch), count)]
    return [run_step(validating, forward, part, number) for number, part in enumerate(parts)]


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_shards_and_replicas_validate_as_whole_weights(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 1 << 12)
    monkeypatch.setattr(shards, "LEAST_SHARD_PART", 0.0)
    model = "tests.models.validated:wide"
    cut = capture(model, BATCH, CHOICE, SEED, 2, shards=2)
    whole = capture(model, BATCH, CHOICE, SEED, 2)
    assert cut.validation is not None and cut.code.shards and cut.code.members
    read = cut.validation.code.parameters.keys()
    assert read & cut.code.shards.keys() and read & cut.code.members.keys()
    expected = lazily_validated(whole, spread(whole, 1), 2)
    assert lazily_validated(cut, spread(cut, devices), 2) == expected


def test_it_runs_under_autocast_as_training_does() -> None:
    captured = capture(MODEL, BATCH, CHOICE, SEED, autocast="bf16")
    step = load_training_step(MODEL, BATCH, SEED)
    assert step.loss is not None and step.validation is not None
    whole = ModelWithLoss(step.model, step.loss)
    optimizer = optimizer_of(CHOICE, whole)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss, _ = whole(*step.batches(0))
    loss.backward()
    optimizer.step()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss, _ = whole.eval()(*step.validation(0))
    assert lazily_validated(captured, spread(captured, 2), 1) == [loss.item()]


def test_operators_are_where_training_computes_the_same() -> None:
    """What is sent is sent between devices that training sends between, of which some may have
    nothing to do for a validation."""
    captured = capture(MODEL, BATCH, CHOICE, SEED, accumulate=2)
    graph, placement = captured.operators, spread(captured, 3)
    of_micro_batch = {
        identifier: f"s{max(int(graph.micro_batch[i]), 0) + 1}/0"
        for i, identifier in enumerate(graph.ids)
    }
    by_micro_batch = placement.model_copy(update={"operators": of_micro_batch})
    placed = validation_placement(captured, by_micro_batch)
    computed = {k: d for k, d in placed.operators.items() if k not in captured.values}
    assert set(computed.values()) == {"s1/0"} and placed.order["s3/0"] == ()
    assert validation_placement(captured, placement) == validation_placement(captured, placement)
    assert captured.validation is not None
    assert placed.structure_hash == captured.validation.operators.structure_hash


def test_a_validation_that_does_not_fit_is_refused() -> None:
    captured = capture(MODEL, BATCH, CHOICE, SEED)
    placement = spread(captured, 2)
    placed = validation_placement(captured, placement)
    assert captured.validation is not None
    for device in placement.devices_used:
        assert most_bytes(captured.validation, placed, device) > 0
        refuse_what_does_not_fit(captured, placed, placement, device)
    small = [
        server.model_copy(
            update={"devices": tuple(replace_memory(one, 1 << 10) for one in server.devices)}
        )
        for server in placement.cluster.servers
    ]
    cluster = placement.cluster.model_copy(update={"servers": tuple(small)})
    tight = Placement(**{**fields_of(placement), "cluster": cluster})
    with pytest.raises(JobError, match=r"validation needs .* MiB on s1/0, which has 0\.0 MiB"):
        refuse_what_does_not_fit(captured, placed, tight, "s1/0")


def replace_memory(device: Any, memory_bytes: int) -> Any:
    return device.model_copy(update={"memory_bytes": memory_bytes})


@pytest.mark.slow
def test_a_model_without_validation_batches_is_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    model = "tests.models.small:gpt2"
    placement = spread(capture(model, BATCH, CHOICE, SEED), 2)
    ranks = start_ranks(placement, tmp_path, **options(model=model))
    assert [rank.finish(120) for rank in ranks] == [1, 1]
    assert f"{model} has no validation batches" in ranks[0].failed.what
    assert not ranks[0].step_seconds


@pytest.mark.slow
def test_a_batch_that_is_missing_is_told_before_the_first_step(tmp_path: Path) -> None:
    model = "tests.models.validated:of_one_batch"
    placement = spread(capture(model, BATCH, CHOICE, SEED), 2)
    ranks = start_ranks(placement, tmp_path, **options(model=model))
    assert [rank.finish(120) for rank in ranks] == [1, 1]
    assert not any(rank.step_seconds for rank in ranks)
    assert any("validation(1) failed at " in rank.failed.what for rank in ranks)
