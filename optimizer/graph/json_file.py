"""JSON documents on disk, gzip or not."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from placewire.optimizer.graph.rows import GraphError

_NO_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


def read_plain(path: Path) -> bytes:
    """What is in the file, gzip or not. Raises OSError, and GraphError naming the file where its
    gzip is damaged."""
    try:
        return _unpacked(path)
    except _NO_GZIP as error:
        raise GraphError(f"{path}: no whole gzip file: {error}") from error


def read_json(path: Path) -> Any:
    """Gzip or not. Raises OSError, and GraphError naming the file where it is no JSON document."""
    try:
        return json.loads(_unpacked(path))
    except (ValueError, *_NO_GZIP) as error:
        raise GraphError(f"{path}: no JSON document: {error}") from error
    except RecursionError:
        raise GraphError(f"{path}: no JSON document: it is nested too deeply") from None


def _unpacked(path: Path) -> bytes:
    """Gzip is recognised by its first bytes."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def write_json(path: Path, document: Any) -> None:
    """Atomically; gzip where the name ends in .gz."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    staged = path.with_name(path.name + ".part")
    staged.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    staged.replace(path)
