"""Reads and writes JSON documents on disk, with or without gzip."""

from __future__ import annotations

import gzip
import json
import secrets
import zlib
from pathlib import Path
from typing import Any

from placewire.optimizer.graph.named_output import open_stream
from placewire.optimizer.graph.rows import GraphError

# Ten times the JSON of a graph of 150,000 operators. A small file that others made can unpack to
# more than there is memory.
MOST_BYTES = 1 << 30
# Ten times those of such a graph. A value takes up to a hundred times the memory of its text.
MOST_VALUES = 30_000_000
_NO_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


def read_plain(path: Path) -> bytes:
    """The file's bytes, without gzip. Raises OSError, and GraphError where its gzip is damaged or
    it has more than MOST_BYTES."""
    try:
        return _unpacked(path)
    except _NO_GZIP as error:
        raise GraphError(f"{path}: no whole gzip file: {error}") from error


def read_json(path: Path) -> Any:
    """Raises OSError, and GraphError naming the file where it holds no JSON document, or one of
    more than MOST_BYTES or MOST_VALUES."""
    try:
        data = _unpacked(path)
        # No fewer than it has, counted without reading it: a value follows a comma or a bracket.
        if (values := 1 + sum(data.count(mark) for mark in (b",", b"[", b"{"))) > MOST_VALUES:
            raise GraphError(
                f"{path}: it has up to {values} JSON values; at most {MOST_VALUES} are read"
            )
        return json.loads(data)
    except GraphError:
        raise
    except (ValueError, *_NO_GZIP) as error:
        raise GraphError(f"{path}: no JSON document: {error}") from error
    except RecursionError:
        raise GraphError(f"{path}: no JSON document: it is nested too deeply") from None


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as packed:
        is_gzip = packed.peek(2)[:2] == b"\x1f\x8b"  # It may be a pipe.
        with gzip.open(packed) if is_gzip else packed as stream:
            data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise GraphError(f"{path}: it has more than {MOST_BYTES >> 20} MiB, the most that is read")
    return data


def write_json(path: Path, document: Any) -> None:
    """Replaces the file as `replace_file` does; writes into what `open_stream` opens. Packs with
    gzip where the name ends in .gz. For a path that a user names: in the folder of somebody else,
    whose links and pipes must not be followed, `replace_file` is right."""
    content = packed_json(path, document)
    stream = open_stream(path)
    if stream is None:
        replace_file(path, content)
    else:
        with stream:
            stream.write(content)


def packed_json(path: Path, document: Any) -> bytes:
    """The content of a file of this name: JSON, with gzip where the name ends in .gz."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return gzip.compress(text, mtime=0) if path.suffix == ".gz" else text


def replace_file(path: Path, content: bytes) -> None:
    """Replaces the file atomically, by a new one that the umask decides about. The folder may be
    somebody else's: no name that they can foresee is written to on the way, and no link is
    followed. Raises OSError, and leaves nothing then."""
    staged = path.with_name(f".{secrets.token_hex(16)}.part")
    stream = staged.open("xb")
    try:
        with stream:
            stream.write(content)
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
