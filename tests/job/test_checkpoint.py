"""Checkpoints: does a job go on as if nothing had happened, wherever it is loaded?"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch._C._distributed_c10d import TCPStore
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

import placewire.job.placed.resume as resume_module
from placewire.job.contract.checkpoint import CheckpointSpec, Manifest, checkpoints_in
from placewire.job.contract.specification import OptimizerSpec, RankSpec, Resumed, Saved
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import rank_messages
from placewire.job.placed.checkpoint import Checkpoints
from placewire.job.placed.lower import RankProgram, lower
from placewire.job.placed.resume import begin, changes, differences_between
from placewire.job.placed.state import job_manifest, rank_state
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import CapturedStep, capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.placement import Placement
from tests.job.lazy_network import Mailbox, MailboxTransport, run_step
from tests.job.lazy_training import with_own_values
from tests.job.ranks import end, free_port, run_ranks, start_ranks
from tests.placements import cluster_of, placement_of, random_devices

HARD = "tests.models.hard:training_step"
# Models without dropout that train as eager ones do to the last bit; the first has tied weights.
EAGER = ("tests.models.small:gpt2", "tests.models.small:mlp")
ADAMW = OptimizerSpec(name="adamw", lr=1e-2)
SGD = OptimizerSpec(name="sgd", lr=0.1, options={"momentum": 0.9, "dampening": 0.5})
STEPS, SAVED_AFTER = 6, 3


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Job:
    """A job whose ranks all live in this process."""

    captured: CapturedStep
    ranks: list[tuple[RankProgram, MailboxTransport]]
    checkpoints: list[Checkpoints]
    specs: list[RankSpec]
    box: Mailbox

    def train(self, steps: range) -> list[float]:
        return [run_step(self.box, self.ranks, self.captured.batches(k), k) for k in steps]

    def begin(self) -> int:
        """Lets each rank load its part. Returns the step at which the job goes on."""
        started = {
            begin(s, c, None).step for s, c in zip(self.specs, self.checkpoints, strict=True)
        }
        (step,) = started
        return step

    def state(self, steps_done: int) -> dict[str, torch.Tensor]:
        """Returns all that the ranks hold, by the keys of a checkpoint."""
        trees = [c._state.to_save(steps_done) for c in self.checkpoints]
        return {key: value.clone() for tree in trees for key, value in _flat(tree).items()}


def _flat(tree: Any, path: str = "") -> dict[str, torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return {path: tree}
    if not isinstance(tree, dict):
        return {}
    return {k: v for key, sub in tree.items() for k, v in _flat(sub, f"{path}.{key}").items()}


_CAPTURED: dict[tuple[str, int, int, str], CapturedStep] = {}


def captured_step(model: str, batch: int, seed: int, optimizer: OptimizerSpec) -> CapturedStep:
    key = (model, batch, seed, optimizer.model_dump_json())
    if key not in _CAPTURED:
        choice = OptimizerChoice(optimizer.name, optimizer.lr, optimizer.options)
        _CAPTURED[key] = capture(model, batch, choice, seed)
    return _CAPTURED[key]


def spread(captured: CapturedStep, devices: int, seed: int = 1) -> Placement:
    graph, cluster = captured.operators, cluster_of(devices)
    return placement_of(graph, cluster, random_devices(graph, cluster, seed), order_seed=seed)


def job(
    folder: Path,
    devices: int = 1,
    *,
    model: str = HARD,
    batch: int = 4,
    seed: int = 3,
    optimizer: OptimizerSpec = ADAMW,
    steps: int = STEPS,
    **asked: Any,
) -> Job:
    captured = captured_step(model, batch, seed, optimizer)
    placement, box = spread(captured, devices), Mailbox()
    made = Job(captured, [], [], [], box)
    for device in placement.devices_used:
        spec = RankSpec(
            kind="placed", rank=0, world_size=1, device=device, master_address="127.0.0.1",
            master_tcp_port=1, rail_interfaces=(), placement_file="", model=model, batch=batch,
            optimizer=optimizer, steps=steps, seed=seed,
            checkpoint=CheckpointSpec(folder=str(folder), **{"every": SAVED_AFTER, **asked}),
        )  # fmt: skip
        own, transport = with_own_values(captured), MailboxTransport(box)
        messages = rank_messages(placement, device, ("a",))
        program = lower(own, placement, device, messages, transport)  # type: ignore[arg-type]
        assert spec.checkpoint is not None
        state = rank_state(own, program, is_first=not made.ranks)
        manifest = job_manifest(spec, placement, own)
        made.ranks.append((program, transport))
        made.checkpoints.append(Checkpoints(spec.checkpoint, 0, manifest, state))
        made.specs.append(spec)
    return made


@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["adamw", "sgd"])
def test_another_number_of_ranks_goes_on_to_the_last_bit(
    tmp_path: Path, optimizer: OptimizerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = job(tmp_path / "unused", optimizer=optimizer)
    expected = unbroken.train(range(STEPS))

    first = job(tmp_path, optimizer=optimizer)
    assert first.begin() == 0
    assert first.train(range(SAVED_AFTER)) == expected[:SAVED_AFTER]
    saved = first.checkpoints[0].save(SAVED_AFTER)
    assert saved is not None and saved.bytes > 0
    first.checkpoints[0].close()

    second = job(tmp_path, devices=3, optimizer=optimizer)
    # All ranks of this test share a folder, and take turns as the first rank.
    monkeypatch.setattr(Checkpoints, "make_ready", lambda self: "")
    assert len(second.ranks) == 3 and second.begin() == SAVED_AFTER
    assert second.train(range(SAVED_AFTER, STEPS)) == expected[SAVED_AFTER:]
    ours, theirs = second.state(STEPS), unbroken.state(STEPS)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.slow
def test_ranks_save_together(tmp_path: Path) -> None:
    """Two processes save, three go on; the folder keeps as many checkpoints as asked."""
    unbroken = job(tmp_path / "unused")
    expected = unbroken.train(range(STEPS))
    options: dict[str, Any] = {
        "kind": "placed", "model": HARD, "batch": 4, "seed": 3, "optimizer": ADAMW,
        "checkpoint": CheckpointSpec(folder=str(tmp_path / "kept"), every=2),
    }  # fmt: skip
    two = run_ranks(spread(unbroken.captured, 2), tmp_path / "two", steps=5, **options)
    assert [rank.losses for rank in two if rank.losses] == [expected[:5]]
    saved = [event for rank in two for event in rank.events if isinstance(event, Saved)]
    assert [event.step for event in saved] == [2, 4, 5]
    assert [c.manifest.step for c in checkpoints_in(tmp_path / "kept")] == [4, 5]
    three = run_ranks(spread(unbroken.captured, 3), tmp_path / "three", steps=STEPS, **options)
    assert [rank.losses for rank in three if rank.losses] == [expected[5:]]
    (resumed,) = [e for rank in three for e in rank.events if isinstance(e, Resumed)]
    assert resumed.step == 5 and "s3/0" in resumed.notes[0]

    last = job(tmp_path / "kept")
    assert last.begin() == STEPS
    ours, theirs = last.state(STEPS), unbroken.state(STEPS)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def eager(step: Any, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for number in steps:
        optimizer.zero_grad()
        *inputs, target = step.batches(number)
        loss = step.loss(step.model(*inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("model", "optimizer"), [(EAGER[0], ADAMW), (EAGER[1], SGD)])
def test_plain_pytorch_goes_on_from_a_checkpoint(
    tmp_path: Path, model: str, optimizer: OptimizerSpec
) -> None:
    """Loads a checkpoint in the ways that docs/job.md shows."""
    placed = job(tmp_path, model=model, optimizer=optimizer)
    placed.begin()
    placed.train(range(SAVED_AFTER))
    saved = placed.checkpoints[0].save(SAVED_AFTER)
    assert saved is not None
    expected = placed.train(range(SAVED_AFTER, STEPS))

    for way in ("load", "convert"):
        step = load_training_step(model, 4, seed=99)  # other parameters
        options = placed.captured.optimizer.torch_options
        kind = torch.optim.AdamW if optimizer.name == "adamw" else torch.optim.SGD
        trainable = kind(step.model.parameters(), **dict[str, Any](options), fused=True)
        if way == "load":
            state: dict[str, Any] = {"model": step.model.state_dict()}
            dcp.load(state, checkpoint_id=saved.path)  # type: ignore[attr-defined]
        else:
            dcp_to_torch_save(saved.path, tmp_path / "plain.pt")
            state = torch.load(tmp_path / "plain.pt", weights_only=True)
            step.model.load_state_dict(state["model"])
            # Not strict: a parameter that no step uses has no optimizer state.
            loose = StateDictOptions(strict=False)
            set_optimizer_state_dict(step.model, trainable, state["optimizer"], options=loose)
        for name, value in step.model.state_dict().items():
            assert torch.equal(value, state["model"][name]), name
        if way == "convert":
            again = load_training_step(model, 4, seed=3)
            batches = type(step)(step.model, step.example_inputs, again.batches, step.loss)
            assert eager(batches, trainable, range(SAVED_AFTER, STEPS)) == expected


def test_what_differs_is_said_and_not_loaded(tmp_path: Path) -> None:
    first = job(tmp_path)
    first.begin()
    first.checkpoints[0].save(SAVED_AFTER)
    first.checkpoints[0].close()
    for change, words in [
        ({"batch": 5}, "batch was 4 and is 5"),
        ({"seed": 4}, "seed was 3 and is 4"),
        ({"optimizer": SGD}, "optimizer was adamw and is sgd"),
        (
            {"model": "placewire.examples.models.mlp:training_step"},
            "it lacks model.left.0.weight; .* more",
        ),
        ({"steps": 2}, "after 3 steps; the plan asks for 2"),
        ({"resume": "never"}, "`never`.* has checkpoints already"),
    ]:
        other = job(tmp_path, **change)  # type: ignore[arg-type]
        before = other.state(1)
        with pytest.raises(JobError, match=words):
            other.begin()
        after = other.state(1)
        assert all(torch.equal(after[key], before[key]) for key in before)
        other.checkpoints[0].close()


def manifest(**update: Any) -> Manifest:
    plain = Manifest(
        step=3, structure_hash="a" * 64, model="m:f", batch=4, seed=0, optimizer="adamw",
        optimizer_settings="adamw(lr=0.001)", devices=("s1/0",), torch="2.13.0", files={},
        tensors={"model.weight": "float32[3, 4]"},
    )  # fmt: skip
    return plain.model_copy(update=update)


def test_differences_that_matter_and_those_that_do_not() -> None:
    assert differences_between(manifest(), manifest(model="moved:f", torch="2.14")) == ()
    (wider,) = differences_between(manifest(), manifest(tensors={"model.weight": "float32[3, 5]"}))
    assert wider == "model.weight was float32[3, 4] and is float32[3, 5]"
    (other,) = differences_between(manifest(), manifest(structure_hash="b" * 64))
    assert "the computation is not" in other
    notes = changes(manifest(), manifest(optimizer_settings="adamw(lr=0.01)", devices=("s2/0",)))
    assert notes == (
        "it was on s1/0 and is on s2/0",
        "it had adamw(lr=0.001) and has adamw(lr=0.01)",
    )


def test_a_checkpoint_that_lacks_a_rank_s_file_is_refused(tmp_path: Path) -> None:
    first = job(tmp_path)
    first.begin()
    saved = first.checkpoints[0].save(SAVED_AFTER)
    first.checkpoints[0].close()
    assert saved is not None
    next(Path(saved.path).glob("*.distcp")).unlink()
    with pytest.raises(JobError, match=r"lacks __0_0\.distcp"):
        job(tmp_path).begin()


def test_required_needs_one_and_a_folder_has_one_job(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="has no checkpoint"):
        job(tmp_path / "a", resume="required").begin()
    holder = job(tmp_path / "b")
    assert holder.begin() == 0
    with pytest.raises(JobError, match="another job saves"):
        job(tmp_path / "b").begin()


def test_what_an_ended_job_left_half_made_is_removed(tmp_path: Path) -> None:
    (tmp_path / "saving-00000009").mkdir()
    (tmp_path / "removing-00000001").mkdir()
    (tmp_path / "seen-abc").touch()
    (tmp_path / "mine.txt").touch()
    assert job(tmp_path).begin() == 0
    left = {entry.name for entry in tmp_path.iterdir() if not entry.name.startswith("seen-")}
    assert left == {"in-use", "mine.txt"} and not (tmp_path / "seen-abc").exists()


def test_a_folder_that_is_not_shared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_module, "_SEEN_WITHIN_SECONDS", 0.3)
    other = job(tmp_path / "there")
    spec = other.specs[0].model_copy(update={"rank": 1, "world_size": 2})
    wait = timedelta(seconds=5)
    store = TCPStore("127.0.0.1", free_port(), 1, is_master=True, timeout=wait)
    store.set("checkpoint", json.dumps({"probe": "seen-1", "step": None}))
    with pytest.raises(JobError, match=r"does not see in .*there what rank 0 wrote"):
        begin(spec, other.checkpoints[0], store)


LARGE = """
import torch
from torch import nn
from placewire.optimizer.capture.protocol import TrainingStep

def training_step(batch, seed):
    def batches(step):
        x = torch.randn(batch, 1600, generator=torch.Generator().manual_seed(step))
        return x, x
    model = nn.Sequential(nn.Linear(1600, 1600), nn.Linear(1600, 1600))
    return TrainingStep(model, batches(0), batches, nn.MSELoss())
"""


@pytest.mark.slow
def test_the_last_checkpoint_survives_a_kill_in_the_middle_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    monkeypatch.syspath_prepend(tmp_path)
    captured = capture("large:training_step", 2, OptimizerChoice(), 0)
    placement, kept = spread(captured, 1), tmp_path / "kept"
    options: dict[str, Any] = {
        "kind": "placed", "model": "large:training_step", "batch": 2, "steps": 9,
        "checkpoint": CheckpointSpec(folder=str(kept), every=3),
    }  # fmt: skip
    (unbroken,) = run_ranks(placement, tmp_path, (), **options | {"checkpoint": None})
    ranks = start_ranks(placement, tmp_path, (), **options)
    try:
        half = kept / "saving-00000006"
        deadline = time.monotonic() + 60
        while not (half.exists() and any(half.iterdir())) and time.monotonic() < deadline:
            time.sleep(0.0005)
        os.kill(ranks[0].process.pid, signal.SIGKILL)
        assert ranks[0].finish(10) == -signal.SIGKILL
    finally:
        end(ranks)
    assert half.exists(), "killed too late to show anything"
    assert [c.manifest.step for c in checkpoints_in(kept)] == [3]
    (resumed,) = run_ranks(placement, tmp_path, (), **options)
    assert resumed.losses == unbroken.losses[3:]
    assert not half.exists() and [c.manifest.step for c in checkpoints_in(kept)] == [6, 9]
