"""Finds the source files from which a captured step came."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

_INSTALLED = tuple(
    f"{folder}/lib/python"
    for prefix in (sys.prefix, sys.base_prefix)
    for folder in dict.fromkeys((prefix, str(Path(prefix).resolve())))
)


def is_installed(file: str) -> bool:
    """Whether a source file belongs to Python or to an installed package."""
    path = str(Path(file).resolve())
    return "site-packages" in path or path.startswith(_INSTALLED)


def source_digests() -> dict[str, str]:
    """Returns the sha256, by absolute path, of every loaded module that is not installed.

    While these are the same, the same arguments and torch give the same capture.
    """
    files = {
        str(Path(file).resolve())
        for module in list(sys.modules.values())
        # Thousands of modules are installed; most show it without the cost of resolving a path.
        if (file := getattr(module, "__file__", None))
        and file.endswith(".py")
        and not ("site-packages" in file or file.startswith(_INSTALLED))
    }
    return {
        file: hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for file in sorted(files)
        if not is_installed(file) and Path(file).is_file()
    }
