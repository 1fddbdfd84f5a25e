"""A file is replaced whole, and nothing else in its folder is touched on the way."""

from __future__ import annotations

import gzip
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from placewire.optimizer.graph import json_file
from placewire.optimizer.graph.json_file import read_json, replace_file, write_json
from placewire.optimizer.graph.rows import GraphError


def write_within_seconds(file: Path, document: Any, seconds: float = 10.0) -> None:
    """Fails, instead of waiting for ever, where the write does."""
    writing = threading.Thread(target=write_json, args=(file, document), daemon=True)
    writing.start()
    writing.join(seconds)
    assert not writing.is_alive(), "it waits for something in the folder"


def test_a_link_that_somebody_planted_is_not_followed(tmp_path: Path) -> None:
    """The folder may belong to somebody who has fewer rights than the one who writes."""
    victim, file = tmp_path / "victim", tmp_path / "trace.json"
    victim.write_text("precious")
    (tmp_path / "trace.json.part").symlink_to(victim)
    write_json(file, {"a": 1})
    assert victim.read_text() == "precious"
    assert not file.is_symlink() and read_json(file) == {"a": 1}


def test_a_named_pipe_that_somebody_planted_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json.part")
    write_within_seconds(tmp_path / "trace.json", {"a": 1})
    assert read_json(tmp_path / "trace.json") == {"a": 1}


def test_a_file_of_somebody_s_with_a_similar_name_stays(tmp_path: Path) -> None:
    (tmp_path / "graph.json.gz.part").write_text("mine")
    write_json(tmp_path / "graph.json.gz", [1])
    assert (tmp_path / "graph.json.gz.part").read_text() == "mine"
    assert {one.name for one in tmp_path.iterdir()} == {"graph.json.gz", "graph.json.gz.part"}


def test_a_link_in_the_file_s_own_place_is_replaced(tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "trace.json"
    victim.write_text("precious")
    file.symlink_to(victim)
    write_json(file, {"a": 1})
    assert victim.read_text() == "precious" and not file.is_symlink()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_who_may_read_it(tmp_path: Path, umask: int, mode: int) -> None:
    former = os.umask(umask)
    try:
        write_json(tmp_path / "graph.json", [1])
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "graph.json").stat().st_mode) == mode


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "graph.json").mkdir()
    with pytest.raises(OSError):
        replace_file(tmp_path / "graph.json", b"[1]")
    assert [one.name for one in tmp_path.iterdir()] == ["graph.json"]


def null_device(folder: Path) -> Path:
    """A device of our own that drops what it is given, as /dev/null does."""
    device = folder / "null"
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    device.chmod(0o666)
    return device


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device")
def test_a_device_is_written_into_and_stays(tmp_path: Path) -> None:
    device = null_device(tmp_path)
    before = device.lstat()
    for name in (device, tmp_path / "link"):
        if name != device:
            name.symlink_to(device)
        write_json(name, [1])
        after = device.lstat()
        assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_gets_what_is_written_and_stays(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe, 0o666)
    before = pipe.lstat()
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_within_seconds(pipe, {"a": 1})
    reader.join(10.0)
    assert read == [b'{"a":1}']
    after = pipe.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


def test_an_open_file_of_this_process_is_gone_on_with(tmp_path: Path) -> None:
    """So are /dev/stdout and /dev/fd/3, which are links that root could replace."""
    with (tmp_path / "shown").open("wb", buffering=0) as shown:
        link = tmp_path / "stdout"
        link.symlink_to(f"/proc/self/fd/{shown.fileno()}")
        shown.write(b"before ")
        write_json(link, [1])
        write_json(Path(f"/dev/fd/{shown.fileno()}"), [2])
        shown.write(b" after")
    assert link.is_symlink()
    assert (tmp_path / "shown").read_bytes() == b"before [1][2] after"
    assert {one.name for one in tmp_path.iterdir()} == {"shown", "stdout"}


def test_a_socket_is_refused_and_stays(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="a socket"):
            write_json(tmp_path / "s", [1])
    assert stat.S_ISSOCK((tmp_path / "s").lstat().st_mode)


def test_a_file_that_unpacks_to_more_than_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_file, "MOST_BYTES", 1 << 20)
    for name, size, fits in (("a.json", 1 << 20, True), ("b.json.gz", (1 << 20) + 1, False)):
        content = b'"' + b"x" * (size - 2) + b'"'
        file = tmp_path / name
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        if fits:
            assert len(read_json(file)) == size - 2
        else:
            with pytest.raises(GraphError, match=r"b\.json\.gz: it has more than 1 MiB"):
                read_json(file)


def test_a_packed_file_is_read_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(b"[1, 2]"),))
    writer.start()
    assert read_json(pipe) == [1, 2]
    writer.join()


def test_a_small_file_of_many_values_is_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_file, "MOST_VALUES", 1000)
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(b"[" + b"[]," * 999 + b"[]]"))
    with pytest.raises(GraphError, match="it has up to 2001 JSON values; at most 1000 are read"):
        read_json(file)
    file.write_bytes(gzip.compress(b"[" + b"0," * 900 + b"0]"))
    assert read_json(file) == [0] * 901
