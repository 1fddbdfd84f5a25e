"""Is each rule of checkpoints needed? Without any of them a training that goes on differs.

Ranks live in one process: three save a step with shards and replicas, and one goes on that cuts its
weights otherwise. tests/job/test_exact_parts.py goes on with real ranks and in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.checkpoint import open_folder
from placewire.job.placed.lower import RankProgram
from placewire.job.placed.saved_tensors import SavedTensors
from placewire.job.placed.state import RankState, rank_state
from placewire.job.placed.tensor_file import TensorFile, write_tensors
from placewire.optimizer.capture import shards
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.job.lazy_network import Mailbox, MailboxTransport, run_step
from tests.job.lazy_training import joined, on_one_device, program_of, values_of, with_own_values
from tests.placements import cluster_of, placement_of, random_devices

# It has batch norms and tied weights.
MODEL = "tests.models.hard:without_dropout"
BATCH, PARTS, SAVED_AFTER, STEPS = 8, 4, 2, 4
CHOICE = OptimizerChoice("adamw", 1e-2)
# Two weights of the model are as large, and are cut; a smaller one has replicas.
LEAST_SHARD_BYTES = 4096

Mutation = Callable[[pytest.MonkeyPatch], None]
Outcome = tuple[list[float], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Steps:
    """The step whole, as three ranks save it, and as one goes on with it."""

    whole: CapturedStep
    saving: CapturedStep
    loading: CapturedStep


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def steps(one_thread: None) -> Iterator[Steps]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "LEAST_SHARD_BYTES", LEAST_SHARD_BYTES)
        patch.setattr(shards, "LEAST_SHARD_PART", 0.0)
        whole, saving, loading = (
            capture(MODEL, BATCH, CHOICE, 3, PARTS, shards=count) for count in (1, 3, 2)
        )
    yield Steps(whole, saving, loading)


class Ranks:
    """The ranks of a step on one device, or at random on three."""

    def __init__(self, step: CapturedStep, devices: int) -> None:
        self.step, self.box = step, Mailbox()
        graph, cluster = step.operators, cluster_of(devices)
        placement = on_one_device(step)
        if devices > 1:
            where = random_devices(graph, cluster, 1)
            placement = placement_of(graph, cluster, where, order_seed=1, bundle_seed=1)
        self.ranks: list[tuple[RankProgram, MailboxTransport]] = []
        for device in placement.devices_used:
            transport = MailboxTransport(self.box)
            program = program_of(with_own_values(step), placement, device, transport)
            self.ranks.append((program, transport))

    def train(self, steps: range) -> list[float]:
        return [run_step(self.box, self.ranks, self.step.batches(k), k) for k in steps]

    def states(self) -> Iterator[RankState]:
        for number, (program, _) in enumerate(self.ranks):
            yield rank_state(self.step, program, is_first=not number)

    def values(self) -> dict[str, torch.Tensor]:
        programs = [program for program, _ in self.ranks]
        return joined(self.step, values_of(programs, self.step))


def without_a_break(step: CapturedStep) -> Outcome:
    ranks = Ranks(step, devices=1)
    return ranks.train(range(STEPS)), ranks.values()


def over_a_checkpoint(steps: Steps, folder: Path) -> Outcome:
    saving, loading = Ranks(steps.saving, devices=3), Ranks(steps.loading, devices=1)
    losses = saving.train(range(SAVED_AFTER))
    files = [f"rank{number}" for number, _ in enumerate(saving.ranks)]
    for name, state in zip(files, saving.states(), strict=True):
        write_tensors(open_folder(folder), name, state.to_save(SAVED_AFTER))
    with ExitStack() as stack:
        opened = [stack.enter_context(TensorFile(folder / name)) for name in files]
        saved = SavedTensors(opened, {})
        for state in loading.states():
            saved.load(state.to_load(SAVED_AFTER))
    losses += loading.train(range(SAVED_AFTER, STEPS))
    return losses, loading.values()


def equal(one: Outcome, other: Outcome) -> bool:
    assert one[1].keys() == other[1].keys()
    same = all(torch.equal(value, other[1][name]) for name, value in one[1].items())
    return same and one[0] == other[0]


def without(patch: pytest.MonkeyPatch, part_of_names: str) -> None:
    """What has such a name is neither saved nor loaded, and is as before the first step."""
    own = RankState._own

    def some(self: RankState, steps_of: Any) -> Iterator[tuple[str, torch.Tensor]]:
        yield from (one for one in own(self, steps_of) if part_of_names not in one[0])

    patch.setattr(RankState, "_own", some)


def averages_left_out(patch: pytest.MonkeyPatch) -> None:
    without(patch, ".exp_avg")


def steps_of_the_optimizer_left_out(patch: pytest.MonkeyPatch) -> None:
    without(patch, ".step")


def saved_under_the_rows_of_others(patch: pytest.MonkeyPatch) -> None:
    """Shards of as many rows exchange their names."""
    to_save = RankState.to_save

    def exchanged(self: RankState, steps_done: int) -> Any:
        found = dict(to_save(self, steps_done))
        first, second = "model.query_and_key.weight[0:32]", "model.query_and_key.weight[32:64]"
        names = {first: second, second: first}
        return {names.get(name, name): value for name, value in found.items()}

    patch.setattr(RankState, "to_save", exchanged)


def one_replica_loaded(patch: pytest.MonkeyPatch) -> None:
    """All replicas of a weight have one name."""
    to_load = RankState.to_load

    def each_name_once(self: RankState, *arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
        yield from dict(to_load(self, *arguments)).items()

    patch.setattr(RankState, "to_load", each_name_once)


def rows_from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """Of rows that another rank saved, the first ones are taken."""
    read = TensorFile.read

    def first(self: TensorFile, name: str, rows: slice | None = None) -> torch.Tensor:
        return read(self, name, rows and slice(0, rows.stop - rows.start))

    patch.setattr(TensorFile, "read", first)


def test_a_training_goes_on_as_without_a_break(steps: Steps, tmp_path: Path) -> None:
    assert len({one.name for one in steps.saving.code.shards.values()}) == 2
    assert len(steps.saving.code.members) == 3
    assert len(steps.loading.code.members) == 2, "one rank has both replicas"
    cuts = [{one.suffix for one in s.code.shards.values()} for s in (steps.saving, steps.loading)]
    assert cuts[0] - cuts[1], "who goes on has other rows"
    assert equal(over_a_checkpoint(steps, tmp_path), without_a_break(steps.whole))


@pytest.mark.parametrize(
    "mutation",
    [
        averages_left_out,
        steps_of_the_optimizer_left_out,
        saved_under_the_rows_of_others,
        one_replica_loaded,
        rows_from_the_beginning,
    ],
)
def test_without_a_rule_of_checkpoints(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    expected = without_a_break(steps.whole)
    mutation(monkeypatch)
    assert not equal(over_a_checkpoint(steps, tmp_path), expected)
