"""`controller` commands through a process that has imported all: each is real, starts at once, and
can be killed at a chosen step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.paths import ROOT

HERE = Path(__file__).parent
PROGRAM = "forked_commands_process.py"


@dataclass(frozen=True)
class Done:
    """steps: how many its command took; None: it was killed."""

    code: int
    output: str
    steps: int | None

    @property
    def document(self) -> Any:
        """What `--json` printed."""
        begin = 0 if self.output.startswith("{") else self.output.index("\n{") + 1
        return json.loads(self.output[begin:])


class Commands:
    """output: the file that each of them prints to."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process, self._output = process, output

    def run(self, arguments: Sequence[str | Path], **order: Any) -> Done:
        """order: as forked_commands_process.py takes it."""
        told = order | {"arguments": [*map(str, arguments)], "output": str(self._output)}
        done = json.loads(ask(self._process, json.dumps(told) + "\n"))
        return Done(done["code"], self._output.read_text(), done["steps"])


@contextmanager
def commands(
    output: Path, around: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Commands]:
    """around: words before the program's own, as those that enter a namespace."""
    with program(PROGRAM, around, environment) as process:
        yield Commands(process, output)


@contextmanager
def program(
    file: str, around: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """One beside this file, which ends with its standard input."""
    process = subprocess.Popen(
        [*around, sys.executable, str(HERE / file)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        env={**(environment or os.environ), "COLUMNS": "200", "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        yield process
    finally:
        _pipe(process.stdin).close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _pipe(process.stdout).close()


def ask(process: subprocess.Popen[bytes], line: str) -> str:
    """A line for a line."""
    _pipe(process.stdin).write(line.encode())
    _pipe(process.stdin).flush()
    return _pipe(process.stdout).readline().decode()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
