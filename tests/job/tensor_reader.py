"""Reads the tensor `a` of a file that a job may begin from, as ranks do, in a process of its own.

    python -m tests.job.tensor_reader FILE

It prints why the file was refused, where it was, and then whether reading it imported torch.onnx.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from placewire.job.placed.tensor_header import TensorFileError
from placewire.job.placed.tensor_sources import opened
from tests.forking import Forked, Forking


@functools.cache
def _forking() -> Forking:
    return Forking("torch", "placewire.job.placed.tensor_sources")


def start_reader(path: Path) -> Forked:
    return _forking().start("tests.job.tensor_reader", str(path))


def main() -> None:
    try:
        with opened(Path(sys.argv[1]), "") as source:
            source.read("a", None)
    except TensorFileError as error:
        print(error)
    print("torch.onnx" in sys.modules)


if __name__ == "__main__":
    main()
