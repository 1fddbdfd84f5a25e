"""The error of a capture, and where in the user's source it lies."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

from placewire.optimizer.capture.sources import is_installed

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(.+)')
_OWN = str(Path(__file__).resolve().parent)


class CaptureError(ValueError):
    """The step cannot be captured; says why, where in the user's source, and what to do."""


def user_location(error: BaseException) -> str:
    """Returns `file:line: source` of the user's innermost frame, and of the innermost one in a
    package that it calls, as a library of models is; or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost((frame.filename, frame.lineno, frame.line or "") for frame in frames)


def user_location_in(stack: str) -> str:
    """Returns the same for a stack that torch wrote as text."""
    return _innermost(_FRAME.findall(stack))


def _innermost(frames: Iterable[tuple[str, object, str]]) -> str:
    users, packages = "", ""
    for file, line, source in frames:
        path = str(Path(file).resolve())
        _, _, package = path.rpartition("site-packages/")
        if file.startswith("<") or path.startswith(_OWN):
            continue
        if not is_installed(file):
            users, packages = f"{file}:{line}: `{source.strip()}`", ""
        elif package != path and not package.startswith("torch/"):
            packages = f"{package}:{line}: `{source.strip()}`"
    return ", in ".join(filter(None, (users, packages)))


def one_line(error: BaseException) -> str:
    """Returns the type and the first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
