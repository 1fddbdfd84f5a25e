"""A scaled loss on several ranks: is it trained as on one, wherever the scaler's state is held?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.checkpoint import checkpoints_in
from placewire.job.contract.specification import Noted, OptimizerSpec, ScalerSpec, StepDone
from placewire.job.placed.checkpoint import Checkpoints
from placewire.job.placed.plain_state import read_checkpoint
from placewire.job.placed.resume import changes
from placewire.optimizer.capture import shards
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.gradient_scaler import GradientScaler
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.job.lazy_training import joined, on_one_device, train
from tests.job.ranks import run_ranks
from tests.job.test_checkpoint import HARD, SAVED_AFTER, Job, job, spread
from tests.optimizer.capture.eager import train_eager
from tests.placements import cluster_of, placement_of, random_devices

SCALER = GradientScaler(2.0**19, growth_interval=2)
CHOICES = {
    "adamw": OptimizerChoice("adamw", 1e-2, scaler=SCALER),
    "sgd, clipped": OptimizerChoice("sgd", 0.1, {"momentum": 0.9}, 0.5, SCALER),
    "RMSprop": OptimizerChoice("torch.optim:RMSprop", 1e-3, scaler=SCALER),
}
LONG = 9
SPECS = {
    name: OptimizerSpec(
        name=choice.name,
        lr=choice.lr,
        options=dict(choice.options),
        clip_norm=choice.clip_norm,
        scaler=ScalerSpec(**asdict(SCALER)),
    )
    for name, choice in CHOICES.items()
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=CHOICES)
def captured(request: pytest.FixtureRequest) -> CapturedStep:
    """Dropout, batch norm and tied weights, in two micro-batches."""
    return capture(HARD, 6, CHOICES[request.param], 3, accumulate=2, autocast="fp16")


@pytest.mark.parametrize("seed", range(4))
def test_any_ranks_train_as_one(captured: CapturedStep, seed: int) -> None:
    expected_losses, expected = train(captured, on_one_device(captured), LONG)
    graph, cluster = captured.operators, cluster_of(2 + seed % 2)
    devices = random_devices(graph, cluster, seed)
    placement = placement_of(graph, cluster, devices, order_seed=seed if seed > 1 else None)
    scalars = [m for m in placement.messages if m.producer in ("found_inf", "metric_scale")]
    assert scalars and all(message.bytes == 4 for message in scalars)
    losses, values = train(captured, placement, LONG)
    assert losses == expected_losses and len(set(losses)) == LONG
    assert all(torch.equal(values[k], v) for k, v in expected.items())
    scale = next(node for node, key in captured.code.scaler.items() if key == "scale")
    assert values[scale] < SCALER.init_scale, "no step was skipped"


def test_shards_and_replicas_train_as_whole_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = CHOICES["adamw"]
    whole = capture(HARD, 6, choice, 3, accumulate=2, autocast="fp16")
    expected_losses, expected = train(whole, on_one_device(whole), LONG)
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 1 << 12)
    cut = capture(HARD, 6, choice, 3, accumulate=2, autocast="fp16", shards=2)
    assert cut.code.shards and cut.code.members
    losses, values = train(cut, spread(cut, 3), LONG)
    assert losses == expected_losses
    ours, theirs = joined(cut, values), joined(whole, expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.thorough), 3])
def test_real_ranks_report_scales_and_skipped_steps(tmp_path: Path, devices: int) -> None:
    model, choice = "tests.models.small:gpt2", CHOICES["adamw"]
    expected = train_eager(model, choice, LONG + 1, 4, 3, 2, "fp16")
    step = capture(model, 4, choice, 3, accumulate=2, autocast="fp16")
    ranks = run_ranks(
        spread(step, devices), tmp_path, kind="placed", model=model, batch=4, seed=3,
        accumulate=2, autocast="fp16", optimizer=SPECS["adamw"], steps=LONG,
        captured_once=devices > 1,  # One rank captures the step itself.
    )  # fmt: skip
    done = [e for rank in ranks for e in rank.events if isinstance(e, StepDone)]
    told: list[dict[str, float]] = [{} for _ in range(LONG)]
    for event in done:
        told[event.step] |= event.metrics
    scales = [one["scale"] for one in told]
    assert scales == expected.scales[:LONG]
    skipped = [after < before for before, after in zip(scales, expected.scales[1:], strict=True)]
    assert [one["skipped"] for one in told] == skipped
    assert {*skipped} == {True, False}
    # A step that the scaler skips has diverged only where its loss is not finite either.
    notes = [
        note for rank in ranks for e in rank.events if isinstance(e, Noted) for note in e.notes
    ]
    assert not any(note.startswith("the loss of step") for note in notes)
    assert not any(event.non_finite_loss for event in done)
    assert [loss for rank in ranks for loss in rank.losses] == expected.losses[:LONG]


def scaled_job(folder: Path, optimizer: OptimizerSpec, devices: int = 1, **options: Any) -> Job:
    options = {"autocast": "fp16", "optimizer": optimizer, "devices": devices, **options}
    return job(folder, **options)


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize(
    "scaler",
    [
        # None of the steps before the checkpoint updates anything, or some do.
        ScalerSpec(**asdict(replace(SCALER, init_scale=2.0**40, backoff_factor=2.0**-9))),
        ScalerSpec(**asdict(replace(SCALER, init_scale=2.0**15))),
    ],
    ids=["all skipped", "some skipped"],
)
def test_a_job_goes_on_from_a_checkpoint_to_the_last_bit(
    tmp_path: Path, name: str, scaler: ScalerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = SPECS[name].model_copy(update={"scaler": scaler})
    # The checkpoint changes nothing of the job that goes on.
    first = scaled_job(tmp_path, optimizer)
    first.begin()
    expected = first.train(range(SAVED_AFTER))
    assert first.checkpoints[0].save(SAVED_AFTER) is not None
    expected += first.train(range(SAVED_AFTER, LONG))
    skips_all = scaler.init_scale > 2.0**32
    saved = read_checkpoint(checkpoints_in(tmp_path)[0].path)
    assert saved["scaler"]["_growth_tracker"] == 0 or not skips_all
    assert name == "adamw" or bool(saved["optimizer"]["state"]) != skips_all
    unbroken = scaled_job(tmp_path / "unused", optimizer)
    assert unbroken.train(range(LONG)) == expected
    first.checkpoints[0].close()

    second = scaled_job(tmp_path, optimizer, devices=3, steps=LONG)
    monkeypatch.setattr(Checkpoints, "make_ready", lambda self: "")
    assert second.begin() == SAVED_AFTER
    assert second.train(range(SAVED_AFTER, LONG)) == expected[SAVED_AFTER:]
    ours, theirs = second.state(LONG), unbroken.state(LONG)
    assert ours.keys() == theirs.keys() >= {"scaler.scale", "scaler._growth_tracker"}
    assert any(key.startswith("optimizer.state.") for key in theirs), "no step was updated"
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("scaled_first", [True, False])
def test_a_job_may_go_on_with_a_scaler_or_without(tmp_path: Path, scaled_first: bool) -> None:
    scaled, plain = SPECS["adamw"], SPECS["adamw"].model_copy(update={"scaler": None})
    before, after = (scaled, plain) if scaled_first else (plain, scaled)
    first = scaled_job(tmp_path, before)
    first.begin()
    first.train(range(SAVED_AFTER))
    first.checkpoints[0].save(SAVED_AFTER)
    first.checkpoints[0].close()
    (saved,) = checkpoints_in(tmp_path)
    second = scaled_job(tmp_path, after)
    (told,) = changes(saved.manifest, second.checkpoints[0].job)
    assert "scaler(init_scale=524288.0" in told
    assert second.begin() == SAVED_AFTER
    state = second.state(SAVED_AFTER)
    assert ("scaler.scale" in state) == (not scaled_first)
    if not scaled_first:
        assert state["scaler.scale"] == SCALER.init_scale


@pytest.mark.parametrize("name", ["adamw", "RMSprop"])
def test_plain_pytorch_goes_on_with_the_scaler_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    model, optimizer = "tests.models.small:gpt2", SPECS[name]
    placed = scaled_job(tmp_path, optimizer, model=model)
    placed.begin()
    placed.train(range(SAVED_AFTER))
    saved = placed.checkpoints[0].save(SAVED_AFTER)
    assert saved is not None
    expected = placed.train(range(SAVED_AFTER, LONG))

    step, batches = (load_training_step(model, 4, seed=seed) for seed in (99, 3))
    assert step.loss is not None
    given: dict[str, Any] = {**placed.captured.optimizer.torch_options}
    trainable: torch.optim.Optimizer = (
        torch.optim.AdamW(step.model.parameters(), **given, fused=True)
        if name == "adamw"
        else torch.optim.RMSprop(step.model.parameters(), **given)
    )
    scaler = torch.amp.GradScaler("cpu")
    state = read_checkpoint(saved.path)
    step.model.load_state_dict(state["model"])
    of_all = state["optimizer"]["state"]
    numbered = enumerate(name for name, _ in step.model.named_parameters())
    own = {k: of_all[name] for k, name in numbered if name in of_all}
    trainable.load_state_dict({**trainable.state_dict(), "state": own})
    scaler.load_state_dict(state["scaler"])
    losses = []
    for number in range(SAVED_AFTER, LONG):
        *inputs, target = batches.batches(number)
        with torch.autocast("cpu", torch.float16, cache_enabled=False):
            loss = step.loss(step.model(*inputs), target)
        trainable.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(trainable)
        scaler.update()
        losses.append(loss.item())
    assert losses == expected
    ours = placed.state(LONG)
    assert scaler.state_dict()["scale"] == ours["scaler.scale"].item()
    assert scaler.state_dict()["_growth_tracker"] == ours["scaler._growth_tracker"].item()
    for parameter, value in step.model.state_dict().items():
        assert torch.equal(value, ours[f"model.{parameter}"]), parameter


def test_a_specified_scaler_has_the_defaults_of_one_that_is_captured() -> None:
    assert ScalerSpec().model_dump() == asdict(GradientScaler())
