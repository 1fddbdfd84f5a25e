"""An argument type for files to write: a wrong one is told before the work, not after it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def output_file(text: str) -> Path:
    """Raises argparse.ArgumentTypeError where no such file could be written now."""
    file = Path(text)
    folder = file.parent
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {folder}; make it first")
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; give the file a name")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written: permission denied")
    return file
