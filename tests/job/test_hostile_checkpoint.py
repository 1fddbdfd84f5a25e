"""Whoever writes a checkpoint's folder decides about numbers, and never about memory or code."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.checkpoint import (
    Checkpoint,
    Manifest,
    checkpoint_at,
    listed_in,
    values_in,
)
from placewire.job.contract.specification import Failed, Noted, Resumed, parse_rank_event
from placewire.job.errors import JobError
from placewire.job.placed.plain_state import read_checkpoint
from placewire.job.placed.resume import chosen_names
from placewire.job.placed.saved_tensors import saved_tensors
from placewire.job.placed.tensor_file import TensorFileError

MiB = 2**20


def made(folder: Path, entries: Mapping[str, Any], size: int, groups: Any = None) -> Checkpoint:
    """Makes a checkpoint by hand. size: of the tensors' bytes, which are a hole in the file."""
    header = json.dumps(entries).encode()
    file = folder / "rank0.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, 8 + len(header) + size)
    manifest = Manifest(
        step=1, structure_hash="", model="", batch=1, seed=0, optimizer="", optimizer_settings="",
        devices=(), torch="", tensors={}, files={file.name: file.stat().st_size},
        param_groups=groups or {},
    )  # fmt: skip
    (folder / "placewire.json").write_text(manifest.model_dump_json())
    return checkpoint_at(folder)


def entry(shape: list[int], size: int, begin: int = 0) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, begin + size]}


def load(checkpoint: Checkpoint) -> None:
    with saved_tensors(checkpoint) as saved:
        saved.load([("model.w", torch.zeros(4))])


def test_a_tensor_of_another_shape_is_refused_before_it_is_read(tmp_path: Path) -> None:
    hostile = made(tmp_path, {"model.w": entry([100 * MiB], 400 * MiB)}, 400 * MiB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TensorFileError, match=r"float32\[104857600\] there, and float32\[4\] here"):
        load(hostile)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 100 * 1024, "nothing of its 400 MiB was read"


def test_a_manifest_of_too_many_values_is_refused_before_it_is_understood(tmp_path: Path) -> None:
    for step in range(1, 9):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        text = made(folder, {}, 0).manifest.model_dump_json()
        groups = '{"optimizer":[{"x":[' + "[]," * 5_000_000 + "[]]}]}"
        text = text.replace('"param_groups":{}', f'"param_groups":{groups}')
        (folder / "placewire.json").write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = listed_in(tmp_path)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 250 * 1024, "none of their values was made"
    assert not found.checkpoints and len(found.unusable) == 8
    assert "up to 10000" in found.unusable[0].why.what and found.unusable[0].is_ours


@pytest.mark.parametrize(
    "change",
    [{"k" * 1_500_000: 1}, {"tensors": {"k" * 1_500_000: 1}}, {"files": {"k" * 999_999: 1}}],
    ids=["key", "tensor", "file"],
)
def test_a_manifest_s_mistake_is_told_however_long_its_place_is(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """A rank ended in an error that nobody foresaw: its own event could not hold the place."""
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    document = json.loads(made(folder, {}, 0).manifest.model_dump_json())
    (folder / "placewire.json").write_text(json.dumps(document | change))
    (found,) = listed_in(tmp_path).unusable
    assert "kkk" in found.why.what and len(found.why.what) < 1000
    header = {"k" * 1_500_000: {"dtype": 1, "shape": [], "data_offsets": [0, 0]}}
    with pytest.raises(TensorFileError, match=r"its header: k{200}…: ") as refused:
        load(made(folder, header, 0))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("what", ["k" * 2_000_000, "a file of \udc80", "a" * 999_999 + "\udc80"])
def test_a_rank_is_heard_whatever_it_has_to_tell(what: str) -> None:
    for event in (
        Failed(rank=0, what=what, remedy=what),
        Noted(rank=0, notes=(what,)),
        Resumed(rank=0, step=1, path="", notes=(what,)),
    ):
        line = event.model_dump_json().encode()
        assert len(line) < 100_000
        assert parse_rank_event(line) == event


def test_of_all_manifests_together_the_newest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        manifest = made(folder, {}, 0).manifest.model_copy(update={"step": step})
        (folder / "placewire.json").write_text(manifest.model_dump_json())
    values = values_in((folder / "placewire.json").read_bytes())
    monkeypatch.setattr("placewire.job.contract.checkpoint._MOST_VALUES_OF_ALL", 2 * values)
    found = listed_in(tmp_path)
    assert [one.manifest.step for one in found.checkpoints] == [2, 3]
    assert [one.path.name for one in found.unusable] == ["step-00000001"]


def test_a_header_of_too_many_values_is_refused_before_it_is_understood(tmp_path: Path) -> None:
    hostile = made(tmp_path, {"x": [[]] * 2_000_001}, 0)
    with pytest.raises(TensorFileError, match="its header has up to 4000004 JSON values"):
        load(hostile)


def test_a_tensor_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    hostile = made(tmp_path, {"model.w": entry([2**41], 2**43)}, 2**43)
    with pytest.raises(TensorFileError, match=r"float32\[4\] here"):
        load(hostile)
    with pytest.raises(TensorFileError, match="no memory for"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("shape", [[2**63, 0], [0, 2**63], [2**62, 2**62, 0], [2] * 63 + [0]])
def test_extents_that_no_tensor_has_are_refused(tmp_path: Path, shape: list[int]) -> None:
    hostile = made(tmp_path, {"model.w": entry(shape, 0)}, 0)
    for use in (lambda: load(hostile), lambda: read_checkpoint(tmp_path)):
        with pytest.raises(TensorFileError, match=r"extents of 'model\.w' are larger"):
            use()


def test_the_largest_extents_of_an_empty_tensor_are_read(tmp_path: Path) -> None:
    made(tmp_path, {"model.w": entry([2**63 - 1, 0], 0)}, 0)
    assert read_checkpoint(tmp_path)["model"]["w"].shape == (2**63 - 1, 0)


@pytest.mark.parametrize(
    "names",
    [
        ("optimizer.state", "optimizer.state.w.step"),
        ("optimizer.param_groups",),
        ("optimizer",),
        ("optimizer.stateless.w",),
    ],
)
def test_names_that_are_no_state_of_an_optimizer_are_refused(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    entries = {name: entry([], 4, 4 * k) for k, name in enumerate(names)}
    made(tmp_path, entries, 4 * len(names), groups={"optimizer": ({"lr": 1.0},)})
    with pytest.raises(TensorFileError, match="no state of a parameter"):
        read_checkpoint(tmp_path)


def test_a_buffer_may_be_called_as_an_optimizer_s_settings_are(tmp_path: Path) -> None:
    names = ("model.param_groups", "model.state.x.y")
    made(tmp_path, {name: entry([], 4, 4 * k) for k, name in enumerate(names)}, 8)
    assert set(read_checkpoint(tmp_path)["model"]) == {"param_groups", "state.x.y"}


@pytest.mark.parametrize("betas", [3, None, "ab"])
def test_settings_of_other_types_are_passed_on(tmp_path: Path, betas: Any) -> None:
    made(tmp_path, {}, 0, groups={"optimizer": ({"betas": betas},)})
    (group,) = read_checkpoint(tmp_path)["optimizer"]["param_groups"]
    assert group == {"fused": True, "betas": betas}


PROBED = "seen-" + "0" * 32


@pytest.mark.parametrize("name", [None, "step-00000008"])
def test_a_rank_follows_to_a_checkpoint_of_the_job_s_folder(name: str | None) -> None:
    assert chosen_names(json.dumps({"probe": PROBED, "name": name})) == (PROBED, name)


@pytest.mark.parametrize(
    ("probe", "name"),
    [
        (PROBED, "../step-00000008"), (PROBED, "/step-00000008"), (PROBED, "step-00000008/../../x"),
        (PROBED, "step-00000008\n"), (PROBED, "saving-00000008"), (PROBED, 8), (PROBED, ["x"]),
        ("../" + PROBED, None), (None, None), ("/etc/passwd", "step-00000008"),
    ],
)  # fmt: skip
def test_a_rank_follows_to_no_other_folder(probe: object, name: object) -> None:
    with pytest.raises(JobError, match="is no name of a checkpoint"):
        chosen_names(json.dumps({"probe": probe, "name": name}))


@pytest.mark.parametrize("said", [b"", b"[]", b"7", b"\xff", b"[" * 100_000])
def test_a_rank_follows_nobody_who_says_nothing(said: bytes) -> None:
    with pytest.raises(JobError, match="is no name of a checkpoint"):
        chosen_names(said)
