"""No pickle that job.state names ends the process that reads it, or makes it import anything."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from placewire.job.placed.pickle_tuples import require_hashable
from tests.job.tensor_reader import start_reader
from tests.job.value_files import as_distributed, as_state_dict

# So many that the stack of C has no room for them.
DEEP = 2_000_000


def with_key(key: bytes) -> bytes:
    """The pickle of a dict whose key is what those operations make."""
    return b"\x80\x02}(" + key + b"K\x01u."


def nested() -> bytes:
    return with_key(b")" + b"\x85" * DEEP)


def as_archive(content: bytes, path: Path) -> Path:
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, record in (("data.pkl", content), ("byteorder", b"little")):
        writer.write_record(name, record, len(record))
    writer.write_end_of_file()
    return path


def as_metadata(content: bytes, path: Path) -> Path:
    (as_distributed({"a": torch.ones(3)}, path) / ".metadata").write_bytes(content)
    return path


def as_part(content: bytes, path: Path) -> Path:
    """It lies in the file of a tensor's part, which the metadata names."""
    folder = as_distributed({"a": torch.ones(3)}, path)
    (shard,) = folder.glob("*.distcp")
    as_archive(content, shard)
    _tell_length(folder, shard.stat().st_size)
    return folder


def as_old_part(content: bytes, path: Path) -> Path:
    """The same, in the format of torch.save before PyTorch 1.6, which is several pickles."""
    folder = as_distributed({"a": torch.ones(3)}, path)
    (shard,) = folder.glob("*.distcp")
    torch.save({}, shard, _use_new_zipfile_serialization=False)
    old = shard.read_bytes()
    empty = old.index(b"\x80\x02}q\x00.", 40)
    content = old[:empty] + content + old[empty + 6 :]
    shard.write_bytes(content)
    _tell_length(folder, len(content))
    return folder


def _tell_length(folder: Path, length: int) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for place in metadata.storage_data.values():
        place.length = length
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def read(path: Path) -> str:
    """What a process says that reads it, and that has ended as it should."""
    reader = start_reader(path)
    try:
        said, errors = reader.communicate(timeout=240)
    finally:
        reader.kill()
    assert reader.returncode == 0, (reader.returncode, errors.decode())
    return said.decode()


@pytest.mark.parametrize("write", [as_archive, as_metadata, as_part, as_old_part])
def test_tuples_in_each_other_are_refused(
    tmp_path: Path, write: Callable[[bytes, Path], Path]
) -> None:
    """The stack of C ran out while the key was hashed, and the process ended by SIGSEGV."""
    said = read(write(nested(), tmp_path / "values"))
    words = "no archive of torch.save" if write is as_old_part else "holds more than|others in it"
    assert any(word in said for word in words.split("|")), said


def test_a_name_of_torch_in_metadata_has_nothing_imported(tmp_path: Path) -> None:
    said = read(as_metadata(b"ctorch\nonnx\n.", tmp_path / "values"))
    assert "it names torch.onnx, which it has no need of" in said
    assert said.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "between",
    [
        b"",
        b"q\x00h\x00\x86",  # once more in itself, by the memo
        b"Nb",  # BUILD of nothing, and sets and lists that nothing is added to
        b"(e",
        b"(u",
    ],
)
def test_tuples_are_counted_whatever_lies_between_them(between: bytes) -> None:
    content = with_key(b")" + (b"\x85" + between) * 20_000)
    with pytest.raises(pickle.UnpicklingError, match="more than 10000 others in it"):
        require_hashable(content)


def test_one_tuple_many_times_in_others_is_refused() -> None:
    """A hash of 60 such tuples would read 2 to the power of 60 values."""
    twice = b"".join(b"q%ch%c\x86" % (k, k) for k in range(60))
    with pytest.raises(pickle.UnpicklingError, match="more than 10000 others in it"):
        require_hashable(with_key(b")" + twice))


def test_operations_that_change_the_stack_otherwise_are_refused() -> None:
    for name, operation in (("POP", b"0"), ("POP_MARK", b"1"), ("DUP", b"2")):
        with pytest.raises(pickle.UnpicklingError, match=f"the operation {name}, which"):
            require_hashable(with_key(b"N" + operation))


def test_what_trainings_save_has_few_tuples_in_each_other(tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3)) for _ in range(3000)])
    sum(one.sum() for one in optimizer.param_groups[0]["params"]).backward()
    optimizer.step()
    whole: dict[str, object] = {"a": torch.ones(2, 3), "optimizer": optimizer.state_dict()}
    whole |= {"losses": tuple(range(50_000)), "shapes": [(k, (k, k)) for k in range(20_000)]}
    for write in (as_state_dict, as_distributed):
        assert read(write(whole, tmp_path / write.__name__)) == "False\n", "it was read"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        require_hashable(pickle.dumps([whole["losses"], whole["shapes"]], protocol))
