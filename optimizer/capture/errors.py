"""The error of a capture, and where in the user's source it lies."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

from placewire.optimizer.capture.sources import is_installed

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(.+)')
_OWN = f"{Path(__file__).resolve().parents[1]}/"
# Below site-packages: torch, what torch calls, and this package.
_NO_MODELS = ("torch/", "sympy/", "placewire/")
_PACKAGES = "site-packages/"


class CaptureError(ValueError):
    """The step cannot be captured; says why, where in the user's source, and what to do."""


def user_location(error: BaseException, otherwise: str = "") -> str:
    """Returns `file:line: source` of the user's innermost frame, or `otherwise`; and behind it the
    same of the innermost frame in a package that is called from there, as a library of models is.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost(((f.filename, f.lineno, f.line or "") for f in frames), otherwise)


def user_location_in(stack: str, otherwise: str = "") -> str:
    """Returns the same for a stack that torch wrote as text."""
    return _innermost(_FRAME.findall(stack), otherwise)


def _innermost(frames: Iterable[tuple[str, object, str]], otherwise: str) -> str:
    users, packages = otherwise, ""
    for file, line, source in frames:
        path = str(Path(file).resolve())
        package = path.rpartition(_PACKAGES)[2] if _PACKAGES in path else ""
        if file.startswith("<") or path.startswith(_OWN):
            continue
        if not is_installed(file):
            users, packages = f"{file}:{line}: `{source.strip()}`", ""
        elif package and not package.startswith(_NO_MODELS):
            packages = f"{package}:{line}: `{source.strip()}`"
    return ", in ".join(filter(None, (users, packages)))


def one_line(error: BaseException) -> str:
    """Returns the type and the first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
