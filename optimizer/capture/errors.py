"""What can go wrong in a capture that the author of the model can put right."""

from __future__ import annotations

import traceback
from pathlib import Path

from placewire.optimizer.capture.sources import is_installed


class CaptureError(ValueError):
    """The step cannot be captured: says what, where in the user's source, and what to do."""


def user_location(error: BaseException) -> str:
    """`file:line: source` of the innermost frame outside installed packages, or ""."""
    own = str(Path(__file__).resolve().parent)
    chosen = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = str(Path(frame.filename).resolve())
        if frame.filename.startswith("<") or path.startswith(own) or is_installed(path):
            continue
        chosen = f"{frame.filename}:{frame.lineno}: `{frame.line}`"
    return chosen


def one_line(error: BaseException) -> str:
    """The type and first line of an exception's message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
