"""Which source files a captured step came from."""

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
    """sha256 by absolute path of every module loaded so far that is not installed.

    While they are the same, with the same arguments and torch, the capture is the same.
    """
    files = {
        str(Path(file).resolve())
        for module in list(sys.modules.values())
        # Thousands are installed ones, under names that need not be resolved to see it.
        if (file := getattr(module, "__file__", None))
        and file.endswith(".py")
        and not ("site-packages" in file or file.startswith(_INSTALLED))
    }
    return {
        file: hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for file in sorted(files)
        if not is_installed(file) and Path(file).is_file()
    }
