"""A virtual environment that has torch, as installed for the tests, and nothing of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

# Of torch's own; numpy is none of them.
NEEDED = (
    "torch", "torchgen", "functorch", "typing_extensions.py", "sympy", "mpmath", "filelock",
    "jinja2", "markupsafe", "networkx", "fsspec",
)  # fmt: skip


def torch_alone(folder: Path) -> Path:
    """Makes it. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        (packages / name).symlink_to(Path(torch.__file__).parents[1] / name)
    return folder / "bin" / "python"
