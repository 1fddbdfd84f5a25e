"""What PyTorch saved is read as data: a state_dict of torch.save, and a distributed checkpoint."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
from torch.distributed.checkpoint.metadata import Metadata

from placewire.job.errors import JobError
from placewire.job.placed.distributed_checkpoint import DistributedCheckpoint
from placewire.job.placed.state_dict_file import StateDictFile
from placewire.job.placed.tensor_file import TensorFileError
from tests.job.test_checkpoint import job, one_thread  # noqa: F401 - a fixture
from tests.job.test_initial_state import MLP, load, others
from tests.job.value_files import as_distributed, as_state_dict

FORMATS = [as_state_dict, as_distributed]
Write = Callable[[Any, Path], Path]


class _Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("write", FORMATS)
def test_one_entry_of_a_training_s_file_is_the_model(tmp_path: Path, write: Write) -> None:
    step, values = others(MLP)
    optimizer = torch.optim.AdamW(step.model.parameters())
    torch.stack([one.sum() for one in step.model.parameters()]).sum().backward()
    optimizer.step()
    values = {name: one.detach().clone() for name, one in step.model.state_dict().items()}
    whole = {"model": values, "optimizer": optimizer.state_dict(), "epoch": 3}
    file = write(whole, tmp_path / "values")
    made = job(tmp_path / "unused", devices=2, model=MLP)
    with pytest.raises(JobError) as refused:
        load(made, file)
    assert "give `entry`" in str(refused.value) or "`entry` where" in refused.value.remedy
    assert load(made, file, entry="model")[0].startswith(f"{len(values)} tensors begin as in ")
    ours = made.state(0)
    assert all(torch.equal(ours[f"model.{name}"], value) for name, value in values.items())
    with pytest.raises(JobError, match=r"entry net|begins with net\."):
        load(made, file, entry="net")


def test_what_is_no_state_dict_is_told(tmp_path: Path) -> None:
    step, values = others(MLP)
    for content, words in (
        ({"model": values, "epoch": 3}, r"with model \(a dict with \d+ tensors\), epoch \(int\)"),
        ([1], "it is a list"),
        ({}, "it is an empty dict"),
        (step.model, r"needs .*torch\.nn\.modules.*save model\.state_dict\(\)"),
    ):
        with pytest.raises(TensorFileError, match=words):
            StateDictFile(as_state_dict(content, tmp_path / "values"), "")


def test_a_tensor_that_is_not_plain_is_refused_where_the_model_has_its_name(
    tmp_path: Path,
) -> None:
    """One that the model lacks refused the file also with `partial`, which does not read it."""
    _, values = others(MLP)
    first, *_ = values
    made = job(tmp_path / "unused", devices=2, model=MLP)
    sparse = torch.eye(3).to_sparse()
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)])
    file = as_state_dict({**values, "sparse": sparse, "nested": nested}, tmp_path / "more")
    with pytest.raises(JobError, match="it has sparse, which the model lacks"):
        load(made, file)
    for told in load(made, file, partial=True):
        assert told.endswith("it has sparse, which the model lacks")
    ours = made.state(0)
    assert all(torch.equal(ours[f"model.{name}"], value) for name, value in values.items())
    of_a_parameter = values[first].to_sparse()
    file = as_state_dict({**values, first: of_a_parameter}, tmp_path / "instead")
    with pytest.raises(JobError, match=rf"{first} is no plain tensor: Tensor.*sparse_coo"):
        load(made, file)


@pytest.mark.parametrize("write", FORMATS)
def test_numbers_are_converted_and_others_refused(tmp_path: Path, write: Write) -> None:
    _, values = others(MLP)
    half = {name: value.bfloat16() for name, value in values.items()}
    made = job(tmp_path / "unused", devices=2, model=MLP)
    load(made, write(half, tmp_path / "half"))
    ours = made.state(0)
    assert all(torch.equal(ours[f"model.{name}"], value.float()) for name, value in half.items())
    first = next(iter(values))
    for wrong, words in (
        (values[first].int(), "is torch.int32 there"),
        (torch.ones(2, 3), r"has the shape \[2, 3\] there"),
    ):
        file = write({**values, first: wrong}, tmp_path / words[:6].strip())
        with pytest.raises(JobError, match=words):
            load(made, file)


def test_a_bool_is_0_or_1(tmp_path: Path) -> None:
    wrong = torch.tensor([1, 7], dtype=torch.uint8).view(torch.bool)
    source = StateDictFile(as_state_dict({"a": wrong}, tmp_path / "a"), "")
    with pytest.raises(TensorFileError, match="above 1"):
        source.read("a", None)


def test_a_file_from_before_pytorch_1_6_is_told(tmp_path: Path) -> None:
    """It was taken for safetensors, whose header would have had 5088219219985302144 bytes."""
    _, values = others(MLP)
    file = tmp_path / "values.pth"
    torch.save(values, file, _use_new_zipfile_serialization=False)
    with pytest.raises(JobError, match=r"before PyTorch 1\.6; load it, and save it again with"):
        load(job(tmp_path / "unused", model=MLP), file)


def test_a_state_dict_that_would_run_code_is_refused_by_its_name(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    _, values = others(MLP)
    file = as_state_dict({**values, "epoch": _Runs(mark)}, tmp_path / "values")
    made = job(tmp_path / "unused", model=MLP)
    for asked in ({}, {"partial": True}, {"entry": "epoch"}):
        with pytest.raises(JobError, match=r"needs posix\.mkdir, so that to load it could run"):
            load(made, file, **asked)
    assert not mark.exists()
    torch.load(file, weights_only=False)
    assert mark.exists(), "it is a file that runs code"


def test_metadata_that_would_run_code_is_refused_by_its_name(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    _, values = others(MLP)
    folder = as_distributed({**values}, tmp_path / "values")
    made = job(tmp_path / "unused", model=MLP)
    metadata = _metadata(folder)
    metadata.planner_data = _Runs(mark)
    for planted in (pickle.dumps(_Runs(mark)), pickle.dumps(metadata), pickle.dumps(metadata, 2)):
        (folder / ".metadata").write_bytes(planted)
        with pytest.raises(JobError, match=r"it names posix\.mkdir, which it has no need of"):
            load(made, folder)
    assert not mark.exists()
    pickle.loads(planted)
    assert mark.exists(), "it is a pickle that runs code"


def test_metadata_changes_no_class_of_torch(tmp_path: Path) -> None:
    for name in (b"torch.distributed.checkpoint.metadata\nMetadata", b"torch\nSize"):
        (tmp_path / ".metadata").write_bytes(b"c" + name + b"\n(N}S'hurt'\nI1\nstb.")
        with pytest.raises(TensorFileError, match="no metadata of torch"):
            DistributedCheckpoint(tmp_path / ".metadata")
    assert not hasattr(Metadata, "hurt") and not hasattr(torch.Size, "hurt")


def test_a_shard_that_would_run_code_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    folder = as_distributed({"a": torch.ones(3)}, tmp_path / "values")
    (shard,) = folder.glob("*.distcp")
    torch.save(_Runs(mark), shard)
    metadata = _metadata(folder)
    for place in metadata.storage_data.values():
        place.length = shard.stat().st_size
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    source = DistributedCheckpoint(folder / ".metadata")
    with pytest.raises(TensorFileError, match="a cannot be read"):
        source.read("a", None)
    assert not mark.exists()


def test_what_was_cut_off_is_refused(tmp_path: Path) -> None:
    _, values = others(MLP)
    made = job(tmp_path / "unused", model=MLP)
    before = made.state(0)
    file = as_state_dict(values, tmp_path / "values.pt")
    folder = as_distributed({**values}, tmp_path / "values")
    (shard,) = folder.glob("*.distcp")
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(JobError, match="is no whole file of torch"):
        load(made, file)
    size = shard.stat().st_size
    os.truncate(shard, size // 2)
    with pytest.raises(JobError, match=rf"has {size // 2} bytes of at least {size}"):
        load(made, folder)
    shard.unlink()
    with pytest.raises(JobError, match=rf"lacks {shard.name}, which \.metadata names"):
        load(made, folder)
    metadata = folder / ".metadata"
    os.truncate(metadata, metadata.stat().st_size // 2)
    with pytest.raises(JobError, match="is no metadata of torch"):
        load(made, folder)
    metadata.unlink()
    with pytest.raises(JobError, match=r"no file in this folder is called \.metadata or \*\.safe"):
        load(made, folder)
    assert all(torch.equal(before[key], value) for key, value in made.state(0).items())


def _elsewhere(metadata: Metadata) -> None:
    for place in metadata.storage_data.values():
        place.relative_path = "../__0_0.distcp"


def _packed(metadata: Metadata) -> None:
    for place in metadata.storage_data.values():
        place.transform_descriptors = ["zstd"]


def _before_its_file(metadata: Metadata) -> None:
    for place in metadata.storage_data.values():
        place.offset = -1


def _without_place(metadata: Metadata) -> None:
    metadata.storage_data.clear()


def _flat(metadata: Metadata) -> None:
    _entry(metadata).chunks[0].offsets = torch.Size([0])


def _no_type(metadata: Metadata) -> None:
    _entry(metadata).properties.dtype = "float32"


def _extents(metadata: Metadata) -> None:
    _entry(metadata).size = torch.Size([2**62, 2**62])


def _a_list(metadata: Metadata) -> None:
    vars(metadata)["state_dict_metadata"] = []


def _entry(metadata: Metadata) -> Any:
    return metadata.state_dict_metadata["a"]


def _metadata(folder: Path) -> Metadata:
    found: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_elsewhere, r"'\.\./__0_0\.distcp' is no name of its files"),
        (_packed, "is packed by .*zstd"),
        (_before_its_file, "the place of a in __0_0.distcp is no number of bytes"),
        (_without_place, r"no file has the part of a at \[0, 0\]"),
        (_flat, "another number of extents"),
        (_no_type, "no type but str"),
        (_extents, "the extents of a tensor are none"),
        (_a_list, "state_dict_metadata is no dict"),
    ],
)
def test_metadata_that_does_not_hold_is_refused(
    tmp_path: Path, change: Callable[[Metadata], None], words: str
) -> None:
    folder = as_distributed({"a": torch.ones(3, 4)}, tmp_path / "values")
    metadata = _metadata(folder)
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(TensorFileError, match=words):
        DistributedCheckpoint(folder / ".metadata")


def test_metadata_of_an_older_torch_is_read(tmp_path: Path) -> None:
    """Up to torch 2.2 the properties of a tensor were of the class that sharded tensors have."""
    folder = as_distributed({"a": torch.ones(3, 4)}, tmp_path / "values")
    metadata = _metadata(folder)
    _entry(metadata).properties = TensorProperties(dtype=torch.float32)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert TensorProperties.__module__.encode() in (folder / ".metadata").read_bytes()
    assert torch.equal(
        DistributedCheckpoint(folder / ".metadata").read("a", None), torch.ones(3, 4)
    )


def test_a_tensor_without_some_of_its_parts_is_refused(tmp_path: Path) -> None:
    folder = as_distributed({"a": torch.ones(3, 4)}, tmp_path / "values")
    metadata = _metadata(folder)
    _entry(metadata).size = torch.Size([4, 4])
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    source = DistributedCheckpoint(folder / ".metadata")
    assert torch.equal(source.read("a", slice(1, 3)), torch.ones(2, 4))
    with pytest.raises(TensorFileError, match="is there in part only"):
        source.read("a", None)


SHARDED = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor

rank, meeting, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
mesh = dist.init_device_mesh("cpu", (2,))
whole = torch.arange(35.0).reshape(7, 5)
parts = {f"by {k}": distribute_tensor(whole + k, mesh, [Shard(k)]) for k in (0, 1)}
dcp.save({"model": {**parts, "number": torch.tensor(3)}}, checkpoint_id=folder)
os._exit(0)  # The end of a process group of gloo sometimes aborts; all is saved before.
"""


@pytest.mark.slow
def test_parts_of_several_processes_are_joined_and_rows_cut_from_them(tmp_path: Path) -> None:
    folder = tmp_path / "values"
    # They meet in a file: rank 1 may ask for a port before rank 0 has it, and connect to itself.
    arguments = (str(tmp_path / "meeting"), str(folder))
    ranks = [
        subprocess.Popen([sys.executable, "-c", SHARDED, str(rank), *arguments]) for rank in (0, 1)
    ]
    assert [one.wait(timeout=300) for one in ranks] == [0, 0]
    assert len(list(folder.glob("*.distcp"))) == 2
    source = DistributedCheckpoint(folder / ".metadata")
    whole = torch.arange(35.0).reshape(7, 5)
    for k in (0, 1):
        assert torch.equal(source.read(f"model.by {k}", None), whole + k)
        assert torch.equal(source.read(f"model.by {k}", slice(2, 6)), (whole + k)[2:6])
    assert source.read("model.number", None).item() == 3


def test_a_rank_without_such_a_folder_imports_nothing_for_it() -> None:
    program = (
        "import sys, placewire.job.placed.runtime\n"
        "assert 'torch.distributed.checkpoint' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
