"""Checkpoints: does a job go on as if nothing had happened, wherever it is loaded?"""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo, TCPStore
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

import placewire.job.placed.checkpoint as checkpoint_module
import placewire.job.placed.resume as resume_module
import placewire.job.placed.tensor_file as tensor_file_module
from placewire.job.contract.checkpoint import (
    LOCK,
    CheckpointError,
    CheckpointSpec,
    Manifest,
    checkpoint_at,
    checkpoints_in,
)
from placewire.job.contract.same_job import differences_between
from placewire.job.contract.specification import (
    OptimizerSpec,
    RankSpec,
    Resumed,
    Saved,
    ScheduleSpec,
)
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import rank_messages
from placewire.job.placed import told_progress
from placewire.job.placed.agreement import failures
from placewire.job.placed.checkpoint import Checkpoints
from placewire.job.placed.convert_checkpoint import convert
from placewire.job.placed.lower import RankProgram, lower
from placewire.job.placed.plain_state import read_checkpoint
from placewire.job.placed.resume import begin, changes
from placewire.job.placed.state import job_manifest, rank_state
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.variants import Autocast, Recompute
from placewire.optimizer.placement import Placement
from tests.free_port import free_port
from tests.job.lazy_network import Mailbox, MailboxTransport, run_step
from tests.job.lazy_training import with_own_values
from tests.job.ranks import LONGEST_SECONDS, end, run_ranks, start_ranks
from tests.placements import cluster_of, placement_of, random_devices

HARD = "tests.models.hard:training_step"
# Models without dropout that train as eager ones do to the last bit; the first has tied weights.
EAGER = ("tests.models.small:gpt2", "tests.models.small:mlp")
ADAMW = OptimizerSpec(name="adamw", lr=1e-2)
SGD = OptimizerSpec(name="sgd", lr=0.1, options={"momentum": 0.9, "dampening": 0.5})
RMSPROP = OptimizerSpec(name="torch.optim:RMSprop", lr=1e-3, options={"momentum": 0.9})
ADAFACTOR = OptimizerSpec(name="torch.optim:Adafactor", lr=1e-2)
SIGNED = OptimizerSpec(name="tests.models.optimizers:Signed", lr=1e-3)
STEPS, SAVED_AFTER = 6, 3


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Job:
    """A job whose ranks all live in this process. captured: what all of them captured, which other
    jobs have too; own: what each has of it, with values of its own."""

    captured: CapturedStep
    own: list[CapturedStep]
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
        states = [c._state.to_save(steps_done) for c in self.checkpoints]
        return {key: value.clone() for state in states for key, value in state.items()}


_CAPTURED: dict[tuple[object, ...], CapturedStep] = {}


def captured_step(
    model: str,
    batch: int,
    seed: int,
    optimizer: OptimizerSpec,
    recompute: Recompute = "none",
    autocast: Autocast | None = None,
) -> CapturedStep:
    key = (model, batch, seed, optimizer.model_dump_json(), recompute, autocast)
    if key not in _CAPTURED:
        choice = OptimizerChoice.of(optimizer.model_dump())
        _CAPTURED[key] = capture(model, batch, choice, seed, autocast=autocast, recompute=recompute)
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
    recompute: Recompute = "none",
    autocast: Autocast | None = None,
    **asked: Any,
) -> Job:
    captured = captured_step(model, batch, seed, optimizer, recompute, autocast)
    placement, box = spread(captured, devices), Mailbox()
    made = Job(captured, [], [], [], [], box)
    for device in placement.devices_used:
        spec = RankSpec(
            kind="placed", rank=0, world_size=1, device=device, master_address="127.0.0.1",
            master_tcp_port=1, rail_interfaces=(), placement_file="", model=model, batch=batch,
            optimizer=optimizer, steps=steps, seed=seed, recompute=recompute,
            checkpoint=CheckpointSpec(folder=str(folder), **{"every": SAVED_AFTER, **asked}),
        )  # fmt: skip
        own, transport = with_own_values(captured), MailboxTransport(box)
        messages = rank_messages(placement, device, ("a",))
        program = lower(own, placement, device, messages, transport)  # type: ignore[arg-type]
        assert spec.checkpoint is not None
        state = rank_state(own, program, is_first=not made.ranks)
        manifest = job_manifest(spec, placement, own)
        made.own.append(own)
        made.ranks.append((program, transport))
        made.checkpoints.append(Checkpoints(spec.checkpoint, 0, manifest, state))
        made.specs.append(spec)
    return made


@pytest.mark.parametrize("optimizer", [ADAMW, SGD, RMSPROP, ADAFACTOR, SIGNED])
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


COSINE = ScheduleSpec(name="cosine", warmup_steps=1, total_steps=STEPS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ADAMW, ADAMW.model_copy(update={"lr": 1e-3})),
        (ADAMW, ADAMW.model_copy(update={"options": {"weight_decay": 0.3}})),
        (ADAMW, ADAMW.model_copy(update={"clip_norm": 0.5})),
        (ADAMW.model_copy(update={"clip_norm": 0.5}), ADAMW),
        (
            ADAMW.model_copy(update={"schedule": COSINE}),
            ADAMW.model_copy(
                update={"schedule": COSINE.model_copy(update={"total_steps": 3 * STEPS})}
            ),
        ),
    ],
    ids=["lr", "weight decay", "clipped", "no longer clipped", "longer cosine"],
)
def test_a_job_goes_on_with_other_settings_of_its_optimizer(
    tmp_path: Path, before: OptimizerSpec, after: OptimizerSpec
) -> None:
    first = job(tmp_path, optimizer=before)
    first.begin()
    first.train(range(SAVED_AFTER))
    first.checkpoints[0].save(SAVED_AFTER)
    state = first.state(SAVED_AFTER)
    first.checkpoints[0].close()
    (saved,) = checkpoints_in(tmp_path)

    second = job(tmp_path, optimizer=after)
    (told,) = changes(saved.manifest, second.checkpoints[0].job)
    assert told.startswith("it had adamw(") and " and has adamw(" in told
    assert second.begin() == SAVED_AFTER
    own = second.state(SAVED_AFTER)
    assert all(torch.equal(own[key], state[key]) for key in state)
    assert second.train(range(SAVED_AFTER, STEPS)) != first.train(range(SAVED_AFTER, STEPS))
    second.checkpoints[0].save(STEPS)
    assert [c.manifest.step for c in checkpoints_in(tmp_path)] == [SAVED_AFTER, STEPS]


def test_another_computation_of_the_same_parameters_is_another_job(tmp_path: Path) -> None:
    saved = manifest(computation_hash="c" * 64)
    other = manifest(structure_hash="b" * 64, computation_hash="d" * 64)
    (why,) = differences_between(saved, other)
    assert "the computation is not" in why
    # A step that is the same as a whole computes the same, however a release takes the hash.
    assert differences_between(saved, manifest(computation_hash="d" * 64)) == ()
    # A former release knew only the whole step.
    old = manifest(structure_hash="a" * 64)
    assert differences_between(old, saved) == ()
    assert differences_between(old, saved.model_copy(update={"structure_hash": "b" * 64})) != ()


def test_another_computation_goes_on_where_the_user_says_so(tmp_path: Path) -> None:
    """As after another dropout."""
    first = job(tmp_path)
    first.begin()
    first.train(range(SAVED_AFTER))
    first.checkpoints[0].save(SAVED_AFTER)
    first.checkpoints[0].close()
    changed = "tests.models.hard:without_dropout"
    refused = job(tmp_path, model=changed)
    with pytest.raises(JobError, match="and the computation is not") as raised:
        refused.begin()
    assert "`job.checkpoint.resume: changed` goes on" in raised.value.remedy
    refused.checkpoints[0].close()

    second = job(tmp_path, model=changed, resume="changed", keep=1)
    beginning = begin(second.specs[0], second.checkpoints[0], None)
    assert beginning.step == SAVED_AFTER and beginning.resumed is not None
    (note,) = beginning.resumed.notes
    was, now = (made.captured.operators.structure_hash[:12] for made in (first, second))
    assert note.startswith("its computation was another one (the structure of its step ")
    assert note.endswith(f"was {was} and is {now})")
    ours, theirs = second.state(SAVED_AFTER), first.state(SAVED_AFTER)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    # What may be another job's is never removed.
    for step in (4, 5):
        second.checkpoints[0].save(step)
    assert [one.manifest.step for one in checkpoints_in(tmp_path)] == [SAVED_AFTER, 5]
    second.checkpoints[0].close()
    with pytest.raises(JobError, match="seed was 3 and is 4"):
        job(tmp_path, model=changed, resume="changed", seed=4).begin()


@pytest.mark.slow
def test_ranks_save_together(tmp_path: Path) -> None:
    """Two processes save, three go on; the folder keeps as many checkpoints as asked."""
    unbroken = job(tmp_path / "unused")
    expected = unbroken.train(range(STEPS))
    options: dict[str, Any] = {
        "kind": "placed", "model": HARD, "batch": 4, "seed": 3, "optimizer": ADAMW,
        "captured_once": True,
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

    ended = job(tmp_path / "kept")
    with pytest.raises(JobError, match="nothing is left to train"):
        ended.begin()
    ended.checkpoints[0].close()
    last = job(tmp_path / "kept", steps=STEPS + 1)
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


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [(EAGER[0], ADAMW), (EAGER[1], SGD), (EAGER[0], RMSPROP), (EAGER[1], ADAFACTOR)],
)
def test_plain_pytorch_goes_on_from_a_checkpoint(
    tmp_path: Path, model: str, optimizer: OptimizerSpec
) -> None:
    """Loads a checkpoint as docs/job.md shows."""
    placed = job(tmp_path, model=model, optimizer=optimizer)
    placed.begin()
    placed.train(range(SAVED_AFTER))
    saved = placed.checkpoints[0].save(SAVED_AFTER)
    assert saved is not None
    expected = placed.train(range(SAVED_AFTER, STEPS))

    step = load_training_step(model, 4, seed=99)  # other parameters
    options = placed.captured.optimizer.torch_options
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    kind = kinds.get(optimizer.name) or getattr(torch.optim, optimizer.name.partition(":")[2])
    fused = {"fused": True} if optimizer.name in kinds else {}
    trainable = kind(step.model.parameters(), **dict[str, Any](options), **fused)
    state = read_checkpoint(saved.path)
    step.model.load_state_dict(state["model"])
    # Not strict: a parameter that no step uses has no optimizer state.
    loose = StateDictOptions(strict=False)
    set_optimizer_state_dict(step.model, trainable, state["optimizer"], options=loose)
    for name, value in step.model.state_dict().items():
        assert torch.equal(value, state["model"][name]), name
    again = load_training_step(model, 4, seed=3)
    batches = type(step)(step.model, step.example_inputs, again.batches, step.loss)
    assert eager(batches, trainable, range(SAVED_AFTER, STEPS)) == expected
    # Other kernels than the fused ones would give other last bits.
    ours = placed.state(STEPS)
    for name, value in step.model.state_dict().items():
        assert torch.equal(value, ours[f"model.{name}"]), name


def test_a_checkpoint_of_version_1_is_refused_and_can_be_converted(tmp_path: Path) -> None:
    first = job(tmp_path / "new")
    first.begin()
    first.train(range(SAVED_AFTER))
    saved = first.checkpoints[0].save(SAVED_AFTER)
    first.checkpoints[0].close()
    assert saved is not None
    old = tmp_path / "old" / "step-00000003"
    dcp.save(read_checkpoint(saved.path), checkpoint_id=old, no_dist=True)  # type: ignore[attr-defined]
    document = json.loads((Path(saved.path) / "placewire.json").read_text())
    del document["param_groups"]
    files = {file.name: file.stat().st_size for file in old.iterdir()}
    version_1 = json.dumps(document | {"version": 1, "files": files})
    (old / "placewire.json").write_text(version_1)

    with pytest.raises(CheckpointError, match=r"version 1 .* pickle") as refused:
        job(tmp_path / "old").begin()
    assert "upgrade.md" in refused.value.remedy
    converted = convert(old, tmp_path / "converted")
    groups = [
        read_checkpoint(path)["optimizer"]["param_groups"] for path in (converted, saved.path)
    ]
    assert groups[0] == groups[1]
    other = job(tmp_path / "converted")
    assert other.begin() == SAVED_AFTER
    ours, theirs = other.state(SAVED_AFTER), first.state(SAVED_AFTER)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in theirs)
    with pytest.raises(CheckpointError, match="no checkpoint of version 1"):
        convert(Path(saved.path), tmp_path / "again")


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


def test_a_job_may_be_cut_otherwise_than_it_was_and_is_told_so() -> None:
    """A step that is cut otherwise has other operators, and so another structure."""
    saved = manifest(accumulate=2, shards=3)
    for cut, words in [
        ({"accumulate": 4, "shards": 3}, ["it had job.accumulate 2 and has 4: sums round otherw"]),
        ({"accumulate": 2, "shards": 1}, ["it had job.shards 3 and has 1"]),
        (
            {"accumulate": 1, "shards": 4},
            ["it had job.accumulate 2 and", "it had job.shards 3 and"],
        ),
    ]:
        job = manifest(structure_hash="b" * 64, **cut)
        assert differences_between(saved, job) == ()
        *notes, uncompared = changes(saved, job)
        assert uncompared == "whether the computation is otherwise the same cannot be compared"
        assert len(notes) == len(words)
        assert all(note.startswith(word) for note, word in zip(notes, words, strict=True))
        (renamed,) = differences_between(saved, job.model_copy(update={"model": "moved:f"}))
        assert renamed.startswith("model was m:f and is moved:f; ")
    for known, count, shards in [(saved, 2, 3), (manifest(), 1, 1)]:
        job = manifest(structure_hash="b" * 64, accumulate=count, shards=shards)
        (other,) = differences_between(known, job)
        assert "the computation is not" in other
        # A former release did not note how the step was cut.
        assert ("give job.accumulate" in other) == (known.accumulate is None)
    job = manifest(structure_hash="b" * 64, accumulate=2, shards=1)
    assert differences_between(manifest(), job) == (), "it made other operators of micro-batches"
    (uncompared,) = changes(manifest(), job)
    assert uncompared == "whether the computation is otherwise the same cannot be compared"
    same = manifest(accumulate=2, shards=3)
    assert changes(saved, same) == changes(manifest(), same) == ()


def test_a_checkpoint_that_lacks_a_rank_s_file_is_refused(tmp_path: Path) -> None:
    first = job(tmp_path)
    first.begin()
    saved = first.checkpoints[0].save(SAVED_AFTER)
    first.checkpoints[0].close()
    assert saved is not None
    (Path(saved.path) / "rank0.safetensors").unlink()
    with pytest.raises(JobError, match=r"lacks rank0\.safetensors"):
        job(tmp_path).begin()


class _Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_in_a_checkpoint_s_folder_is_never_run(tmp_path: Path) -> None:
    """Whoever can write the folder also writes its manifest."""
    first = job(tmp_path / "kept")
    first.begin()
    saved = first.checkpoints[0].save(SAVED_AFTER)
    first.checkpoints[0].close()
    assert saved is not None
    mark, folder = tmp_path / "ran", Path(saved.path)
    planted = pickle.dumps(_Runs(mark))
    document = json.loads((folder / "placewire.json").read_text())
    for name in (".metadata", *document["files"]):
        (folder / name).write_bytes(planted)
        document["files"][name] = len(planted)
    for files in (document["files"], {n: s for n, s in document["files"].items() if n[0] != "."}):
        (folder / "placewire.json").write_text(json.dumps(document | {"files": files}))
        other = job(tmp_path / "kept")
        with pytest.raises((JobError, CheckpointError)):
            other.begin()
        other.checkpoints[0].close()
    assert not mark.exists()


def test_folders_of_others_are_told_and_left(tmp_path: Path) -> None:
    """With a checkpoint's name: of another program, of another job, of another user."""
    of_another_program = tmp_path / "step-00001000"
    of_another_program.mkdir(parents=True)
    (of_another_program / "model.pt").write_text("theirs")
    (tmp_path / f"step-{SAVED_AFTER:08d}").mkdir()
    first = job(tmp_path)
    assert first.begin() == 0
    (told, empty) = sorted(first.checkpoints[0].take_notes(), reverse=True)
    assert f"{of_another_program} is left as it is" in told and "step-00000003 is left" in empty
    first.train(range(SAVED_AFTER))
    saved = first.checkpoints[0].save(SAVED_AFTER)
    assert saved is not None and saved.path.endswith("step-000000003"), "its usual name is taken"
    first.checkpoints[0].close()
    other = made_by_another_job(Path(saved.path), tmp_path / "step-00000900")
    second = job(tmp_path)
    assert second.begin() == SAVED_AFTER
    notes = second.checkpoints[0].take_notes()
    assert any(f"{other} is left as it is: it is of another job" in note for note in notes)
    assert (of_another_program / "model.pt").read_text() == "theirs"


def made_by_another_job(checkpoint: Path, place: Path) -> Path:
    shutil.copytree(checkpoint, place)
    document = json.loads((place / "placewire.json").read_text())
    step = int(place.name.removeprefix("step-"))
    (place / "placewire.json").write_text(json.dumps(document | {"seed": 99, "step": step}))
    return place


def test_a_long_save_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that say nothing for five minutes are ended."""
    monkeypatch.setattr(tensor_file_module, "_SYNC_BYTES", 256)
    first = job(tmp_path)
    first.begin()
    told: list[str] = []
    assert first.checkpoints[0].save(1, told.append) is not None and told == []
    monkeypatch.setattr(told_progress, "TELL_EVERY_SECONDS", 0.0)
    saved = first.checkpoints[0].save(2, told.append)
    assert saved is not None
    assert len(told) > 1 and told[0].startswith("of the checkpoint after 2 steps ")
    assert all(one.endswith(" are written so far") for one in told)
    loaded: list[int] = []
    sizes: list[str] = []
    progress = told_progress.ToldProgress(sizes.append, loaded.append)
    first.checkpoints[0].load(checkpoint_at(Path(saved.path)), progress)
    assert loaded == sorted(set(loaded)) and len(loaded) == len(sizes) > 1
    assert sizes[-1] == f"{loaded[-1] / 2**20:.1f} MiB"


def test_only_old_whole_checkpoints_of_this_job_are_removed(tmp_path: Path) -> None:
    first = job(tmp_path)
    first.begin()
    (checkpoints,) = first.checkpoints
    first_saved = checkpoints.save(1)
    assert first_saved is not None
    other = made_by_another_job(Path(first_saved.path), tmp_path / "step-00000000")
    torn = checkpoints.save(2)
    assert torn is not None
    (Path(torn.path) / "rank0.safetensors").unlink()
    for step in (3, 4, 5):
        checkpoints.save(step)
    assert {path.name for path in tmp_path.glob("step-*")} == {
        other.name, "step-00000002", "step-00000004", "step-00000005",
    }  # fmt: skip


def test_an_old_checkpoint_that_cannot_be_removed_is_told_and_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    first = job(tmp_path)
    first.begin()
    monkeypatch.setattr(checkpoint_module, "remove", refuse)
    for step in range(1, 5):
        assert first.checkpoints[0].save(step) is not None
    told = first.checkpoints[0].take_notes()
    assert [note.partition(" cannot be removed")[0] for note in told] == [
        str(tmp_path / "step-00000001"), str(tmp_path / "step-00000002"),
    ]  # fmt: skip
    assert len(checkpoints_in(tmp_path)) == 4


def test_required_needs_one_and_a_folder_has_one_job(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="has no checkpoint"):
        job(tmp_path / "a", resume="required").begin()
    holder = job(tmp_path / "b")
    assert holder.begin() == 0
    with pytest.raises(JobError, match="another job saves"):
        job(tmp_path / "b").begin()


def test_ranks_make_the_folder_and_none_above_it(tmp_path: Path) -> None:
    """A folder above that is missing may be where nothing is mounted yet."""
    folder = tmp_path / "mount" / "kept"
    with pytest.raises(JobError, match=f"{folder.parent} is not there"):
        job(folder).begin()
    folder.parent.mkdir()
    assert job(folder).begin() == 0 and folder.is_dir()


def test_who_may_only_read_the_folder_cannot_hold_its_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch(0o644)  # As a former release made it.
    for folder in (tmp_path, tmp_path / "new"):
        job(folder).begin()
        assert stat.S_IMODE((folder / LOCK).stat().st_mode) == 0o600


def test_what_an_ended_job_left_half_made_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ours = [tmp_path / "saving-00000009", tmp_path / "removing-00000001"]
    notes = tmp_path / "removing-00000002" / "notes.txt"
    theirs = [tmp_path / "saving-for-a-rainy-day", tmp_path / "seen-elsewhere", notes.parent]
    for folder in (*ours, *theirs):
        folder.mkdir()
        (folder / "rank0.safetensors").touch()
    notes.touch()
    (tmp_path / "removing-00000003").symlink_to(theirs[0])
    probe = tmp_path / f"seen-{'0a' * 16}"
    probe.touch()
    mine = [tmp_path / name for name in ("mine.txt", "removing-20251231")]
    for file in mine:
        file.touch()
    assert job(tmp_path).begin() == 0
    left = {entry.name for entry in tmp_path.iterdir() if not entry.is_file()}
    assert left == {folder.name for folder in theirs} | {"removing-00000003"}
    assert notes.exists() and (theirs[0] / "rank0.safetensors").exists()
    assert all(file.exists() for file in mine) and not probe.exists()


def test_a_file_of_others_in_an_unfinished_save_does_not_keep_the_next_one_from_its_name(
    tmp_path: Path,
) -> None:
    """The job would end only when it saves after that step, with all that it trained."""
    for name in (f"saving-{SAVED_AFTER:08d}", "removing-00000002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text(name)
    before = job(tmp_path)
    before.begin()
    assert before.checkpoints[0].save(SAVED_AFTER) is not None
    assert (tmp_path / f"step-{SAVED_AFTER:08d}" / "rank0.safetensors").exists()
    kept = {path.read_text(): path.parent.name for path in tmp_path.glob("*/notes.txt")}
    assert len(kept) == 2 and all(name.startswith("removing-") for name in kept.values())


def test_a_checkpoint_in_another_cut_is_never_removed(tmp_path: Path) -> None:
    """It may be of another model with parameters of the same names: nobody can tell."""
    one = job(tmp_path, keep=1)
    one.begin()
    saver = one.checkpoints[0]
    for step in (1, 2, 3):
        assert saver.save(step) is not None
        if step == 1:
            file = tmp_path / "step-00000001" / "placewire.json"
            hashes = {"structure_hash": "b" * 64, "computation_hash": "c" * 64}
            other = {**hashes, "accumulate": 4}
            file.write_text(json.dumps(json.loads(file.read_text()) | other))
    saver.close()
    left = sorted(path.name for path in tmp_path.glob("step-*"))
    assert left == ["step-00000001", "step-00000003"]


def test_what_others_put_in_the_way_of_a_save_is_not_overwritten(tmp_path: Path) -> None:
    """A link in the folder would make the ranks' user write to where it points."""
    precious, elsewhere = tmp_path / "precious", tmp_path / "elsewhere"
    precious.write_text("mine")
    elsewhere.mkdir()
    holder = job(tmp_path / "kept")
    holder.begin()
    staged = tmp_path / "kept" / "saving-00000003"
    staged.symlink_to(elsewhere)
    with pytest.raises(JobError, match="cannot be saved"):
        holder.checkpoints[0].save(SAVED_AFTER)
    staged.unlink()
    staged.mkdir()
    (staged / "rank0.safetensors").symlink_to(precious)
    with pytest.raises(JobError, match="cannot be saved"):
        holder.checkpoints[0]._together(
            lambda: holder.checkpoints[0]._write(staged, 3, lambda text: None), 3
        )
    assert precious.read_text() == "mine" and not any(elsewhere.iterdir())


def together(*acts: Callable[[Any], object], timeout_seconds: float = 600.0) -> list[Any]:
    """Lets ranks, threads of this process, act at once, each with its group. Returns what each
    returned or raised."""
    store, results = HashStore(), dict[int, Any]()

    def rank(number: int, act: Callable[[Any], object]) -> None:
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_seconds)
        try:
            results[number] = act(gloo(store, number, len(acts), options))
        except JobError as error:
            results[number] = error

    ranks = [Thread(target=rank, args=(number, act)) for number, act in enumerate(acts)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    return [results[number] for number in range(len(acts))]


def saving(of: Job) -> list[Any]:
    """Lets the job's ranks save together. Returns what each returned or raised."""

    def act(number: int, group: Any) -> object:
        checkpoints = of.checkpoints[number]
        checkpoints._rank = number
        checkpoints.join(group)
        return checkpoints.save(SAVED_AFTER)

    return together(*(partial(act, number) for number in range(len(of.ranks))))


def test_ranks_that_save_at_once_make_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoints, "make_ready", lambda self: "")
    (tmp_path / "kept").mkdir()
    two = job(tmp_path / "kept", devices=2)
    two.train(range(SAVED_AFTER))
    saved, nothing = saving(two)
    assert isinstance(saved, Saved) and nothing is None
    assert list(checkpoints_in(tmp_path / "kept")[0].manifest.files) == [
        "rank0.safetensors", "rank1.safetensors",
    ]  # fmt: skip
    three = job(tmp_path / "kept", devices=3)
    assert three.begin() == SAVED_AFTER
    ours, theirs = three.state(SAVED_AFTER), two.state(SAVED_AFTER)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in theirs)


def test_where_one_rank_cannot_save_all_say_which(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    two = job(tmp_path / "kept", devices=2)
    two.checkpoints[1].folder = tmp_path / "not there"
    told = [str(error) for error in saving(two)]
    assert told[0] == told[1] and "rank 1" in told[0] and "No such file" in told[0]
    assert checkpoints_in(tmp_path / "kept") == ()


def test_a_rank_that_saved_elsewhere_is_missed(tmp_path: Path) -> None:
    for name in ("kept", "elsewhere"):
        (tmp_path / name).mkdir()
    two = job(tmp_path / "kept", devices=2)
    two.checkpoints[1].folder = tmp_path / "elsewhere"
    first, _ = saving(two)
    assert "rank1.safetensors is not in" in str(first) and "same on every server" in str(first)


def test_every_rank_learns_which_rank_failed_and_why() -> None:
    reason = "no room " + "\u00e4" * 2000
    said = together(lambda group: failures(group, ""), lambda group: failures(group, reason))
    assert said[0] == said[1] and list(said[0]) == [1]
    assert said[0][1].startswith("no room \u00e4") and len(said[0][1]) < 600
    assert failures(None, "") == {} and failures(None, "x") == {0: "x"}


def test_a_rank_that_takes_long_is_waited_for() -> None:
    """Its part of a checkpoint may be large, and its disk slow."""

    def late(group: Any) -> object:
        time.sleep(1.5)
        return failures(group, "")

    assert together(lambda group: failures(group, ""), late, timeout_seconds=0.5) == [{}, {}]


def test_a_folder_that_is_not_shared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_module, "_SEEN_WITHIN_SECONDS", 0.3)
    other = job(tmp_path / "there")
    spec = other.specs[0].model_copy(update={"rank": 1, "world_size": 2})
    wait = timedelta(seconds=120)
    store = TCPStore("127.0.0.1", free_port(), 1, is_master=True, timeout=wait)
    store.set("checkpoint", json.dumps({"probe": "seen-" + "0" * 32, "name": None}))
    with pytest.raises(JobError, match=r"does not see in .*there what rank 0 wrote"):
        begin(spec, other.checkpoints[0], store)


# With DIES_IN_SAVE, the rank is killed in its second save, with one of its large tensors written.
LARGE = """
import itertools, os, signal
import torch
from torch import nn
from placewire.optimizer.capture.protocol import TrainingStep

def training_step(batch, seed):
    def batches(step):
        x = torch.randn(batch, 1600, generator=torch.Generator().manual_seed(step))
        return x, x
    model = nn.Sequential(nn.Linear(1600, 1600), nn.Linear(1600, 1600))
    return TrainingStep(model, batches(0), batches, nn.MSELoss())

if "DIES_IN_SAVE" in os.environ:
    from placewire.job.placed import checkpoint, tensor_file
    saves, tensors, write = itertools.count(1), itertools.count(1), checkpoint.write_tensors
    bytes_of = tensor_file._bytes_of

    def counted(*arguments):
        if next(saves) == 2:
            tensor_file._bytes_of = dying
        write(*arguments)

    def dying(tensor):
        if tensor.numel() == 1600 * 1600 and next(tensors) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes_of(tensor)

    checkpoint.write_tensors = counted
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
    monkeypatch.setenv("DIES_IN_SAVE", "1")
    ranks = start_ranks(placement, tmp_path, (), **options)
    monkeypatch.delenv("DIES_IN_SAVE")
    try:
        assert ranks[0].finish(LONGEST_SECONDS) == -signal.SIGKILL
    finally:
        end(ranks)
    half = kept / "saving-00000006"
    (part,) = half.iterdir()
    assert part.stat().st_size > 1600 * 1600 * 4
    assert [c.manifest.step for c in checkpoints_in(kept)] == [3]
    (resumed,) = run_ranks(placement, tmp_path, (), **options)
    assert resumed.losses == unbroken.losses[3:]
    assert not half.exists() and [c.manifest.step for c in checkpoints_in(kept)] == [6, 9]
