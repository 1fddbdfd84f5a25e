"""Steps in micro-batches and shards, placed and bundled at random on real ranks: do they train as
one rank does, and do checkpoints of any of them load in any other?

A sample of what is marked `thorough`. Equal: losses, parameters, buffers and optimizer state after
all steps, by torch.equal.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from benchmarks.job.exact import MODELS
from benchmarks.job.exact_parts import (
    BATCH,
    OPTIMIZER,
    CutStep,
    cut_steps,
    differences,
    small_shards,
)
from benchmarks.job.random_placements import on_one_device, random_placement
from benchmarks.job.rank_pool import RankPool, Trained
from placewire.job.contract.checkpoint import CheckpointSpec, checkpoint_path
from placewire.job.contract.specification import StateSpec
from placewire.job.placed.plain_state import read_checkpoint
from placewire.optimizer.capture.protocol import ModelWithLoss, TrainingStep, load_training_step
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.optimizer.capture.eager import optimizer_of

pytestmark = pytest.mark.slow

# Batch norms, with shards; attention in shards has the test of checkpoints.
SAMPLE = (("hard", 3),)
# These have a dropout that drops nothing, so that plain PyTorch can go on from their checkpoints.
WITHOUT_DROPOUT = ("gpt2", "mlp", "bert", "mixture", "alexnet", "vgg_batch_norm")
CHOICE = OptimizerChoice.of(OPTIMIZER.model_dump())


@pytest.mark.thorough
@pytest.mark.parametrize("step", cut_steps(), ids=str)
def test_any_placement_of_any_cut_step_trains_as_one_rank(step: CutStep) -> None:
    assert differences(step) == []


@pytest.mark.parametrize(
    "step", [s for s in cut_steps() if (s.model, s.micro_batches) in SAMPLE], ids=str
)
def test_a_placement_on_each_number_of_ranks_trains_as_one_rank(step: CutStep) -> None:
    assert step.shards > 1
    assert differences(step, steps=3) == []


@dataclass(frozen=True)
class Leg:
    """A part of a training: a step that is cut so, placed at random on so many ranks, until after
    step `until`."""

    micro_batches: int
    shards: int
    ranks: int
    until: int


LEGS = (Leg(4, 3, 3, 2), Leg(2, 5, 2, 4), Leg(8, 2, 4, 5), Leg(8, 1, 2, 6))


@contextmanager
def pools_of(model: str, legs: Sequence[Leg], seed: int) -> Iterator[list[RankPool]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                RankPool(
                    model, BATCH, OPTIMIZER, seed, small_shards,
                    accumulate=leg.micro_batches, shards=leg.shards,
                )
            )
            for leg in legs
        ]  # fmt: skip


def leg_by_leg(
    pools: Sequence[RankPool], legs: Sequence[Leg], folder: Path, seed: int | None
) -> list[Trained]:
    """Each leg goes on from the checkpoint of the one before. seed: of the placements, which are
    all on one rank where there is none."""
    found, bundled = [], 0
    for number, (pool, leg) in enumerate(zip(pools, legs, strict=True)):
        assert any("_rows_" in name for name in pool.graph.ids) == (leg.shards > 1)
        placement = on_one_device(pool.graph)
        if seed is not None:
            placement = random_placement(pool.graph, leg.ranks, ("a", "b"), seed + number)
            assert len(placement.devices_used) == leg.ranks
        checkpoint = CheckpointSpec(
            folder=str(folder), every=100, keep=10, resume="required" if number else "auto"
        )
        bundled += sum(bool(message.bundled) for message in placement.messages)
        found.append(pool.run(placement, leg.until, ("a", "b"), checkpoint=checkpoint))
    assert bundled or seed is None
    return found


class Plain:
    """Plain PyTorch that accumulates, with the fused kernels that captured updates use."""

    def __init__(self, model: str, seed: int) -> None:
        self.step: TrainingStep = load_training_step(model, BATCH, seed)
        assert self.step.loss is not None
        self.module = ModelWithLoss(self.step.model, self.step.loss)
        self.optimizer = optimizer_of(CHOICE, self.step.model)

    def load(self, path: Path) -> None:
        """As docs/job.md shows."""
        state = read_checkpoint(path)
        self.step.model.load_state_dict(state["model"])
        loose = StateDictOptions(strict=False)
        set_optimizer_state_dict(self.step.model, self.optimizer, state["optimizer"], options=loose)

    def train(self, steps: range, accumulate: int) -> tuple[float, ...]:
        losses = []
        for number in steps:
            self.optimizer.zero_grad()
            total = torch.zeros(())
            parts = [x.chunk(accumulate) for x in self.step.batches(number)]
            for micro_batch in zip(*parts, strict=True):
                loss = self.module(*micro_batch) / accumulate
                loss.backward()
                total = total + loss.detach()
            self.optimizer.step()
            losses.append(total.item())
        return tuple(losses)

    def differences(self, path: Path) -> list[str]:
        """The names of what a checkpoint has otherwise."""
        saved = read_checkpoint(path)
        found = [
            name
            for name, value in self.step.model.state_dict().items()
            if not torch.equal(value, saved["model"][name])
        ]
        own: Any = get_optimizer_state_dict(self.step.model, self.optimizer)["state"]
        theirs = saved["optimizer"]["state"]
        assert own and own.keys() == theirs.keys()
        for name, state in own.items():
            assert state.keys() == theirs[name].keys()
            found += [
                f"{name}.{key}"
                for key, value in state.items()
                if not torch.equal(value, theirs[name][key])
            ]
        return found


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("name", "legs"),
    [
        ("gpt2", LEGS[:2]),
        *(pytest.param(name, LEGS, marks=pytest.mark.thorough) for name in WITHOUT_DROPOUT),
    ],
)
def test_checkpoints_load_in_any_other_cut_and_in_plain_pytorch(
    tmp_path: Path, name: str, legs: Sequence[Leg]
) -> None:
    """All legs together equal plain PyTorch that accumulates as they do; PyTorch that loads the
    checkpoint of a leg goes on as the next leg does, and each cut goes on with PyTorch's values."""
    model, seed, folder = f"tests.models.small:{name}", 7, tmp_path / "kept"
    with pools_of(model, legs, seed) as pools:
        trained = leg_by_leg(pools, legs, folder, seed=11)
        from_plain_pytorch(pools, legs, Plain(model, seed), tmp_path / "values.pt")
    plain, begin = Plain(model, seed), 0
    for leg, outcome in zip(legs, trained, strict=True):
        assert not outcome.failures
        expected = plain.train(range(begin, leg.until), leg.micro_batches)
        assert outcome.losses == expected and len(expected) == leg.until - begin
        saved = checkpoint_path(folder, "step-", leg.until)
        assert plain.differences(saved) == []
        # A module with other values, of which all that matters is loaded.
        plain, batches = Plain(model, seed + 1), plain.step.batches
        plain.load(saved)
        plain.step = TrainingStep(
            plain.step.model, plain.step.example_inputs, batches, plain.step.loss
        )
        begin = leg.until


def from_plain_pytorch(
    pools: Sequence[RankPool], legs: Sequence[Leg], plain: Plain, file: Path
) -> None:
    """What plain PyTorch has trained and saved is trained on in each of the cuts as it would."""
    plain.train(range(2), accumulate=1)
    values = plain.step.model.state_dict()
    torch.save(values, file)
    values = {name: value.clone() for name, value in values.items()}
    for number, (pool, leg) in enumerate(zip(pools, legs, strict=True)):
        placement = random_placement(pool.graph, leg.ranks, ("a", "b"), 21 + number)
        state = StateSpec(file=str(file))
        outcome = pool.run(placement, 2, ("a", "b"), state=state)
        plain.step.model.load_state_dict(values)
        plain.optimizer = optimizer_of(CHOICE, plain.step.model)
        assert not outcome.failures
        assert outcome.losses == plain.train(range(2), leg.micro_batches)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hard", "two_towers", "fnet"])
def test_checkpoints_load_in_any_other_cut_with_dropout_and_buffers(
    tmp_path: Path, name: str
) -> None:
    """All legs at random equal the same legs on one rank each, in losses and in what they hold."""
    with pools_of(MODELS[name], LEGS, 7) as pools:
        ones = leg_by_leg(pools, LEGS, tmp_path / "one", seed=None)
        trained = leg_by_leg(pools, LEGS, tmp_path / "spread", seed=11)
        for one, outcome in zip(ones, trained, strict=True):
            assert one.differences(outcome) == ()
        # The same step of one rank goes on at random, and the other way round.
        for source, target in (("one", "mixed"), ("spread", "alone")):
            shutil.copytree(
                checkpoint_path(tmp_path / source, "step-", LEGS[0].until),
                checkpoint_path(tmp_path / target, "step-", LEGS[0].until),
            )
        for folder, seed in (("mixed", 12), ("alone", None)):
            (_, *after) = leg_by_leg(pools, LEGS, tmp_path / folder, seed)
            assert [ones[k + 1].differences(found) for k, found in enumerate(after)] == [()] * 3
