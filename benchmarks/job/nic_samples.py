"""Samples the counters of a server's NICs, once or while a `with` block runs.

    python -m benchmarks.job.nic_samples {once,on} NIC …

The sampler is a process of its own, because it must run in the server's network namespace. It
prints one sample a line, with `on` until it is ended.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import ROOT
from placewire.agent.interface_counters import read_counters

PERIOD_SECONDS = 0.25
# Counters that took longer to read are of no certain time: the sampler had lost its processor.
_READ_SECONDS = 0.005


@dataclass(frozen=True)
class Sample:
    """seconds: by the machine's monotonic clock. The rest: all bytes that each NIC had sent and
    received by then, with headers."""

    seconds: float
    sent_bytes: Mapping[str, int]
    received_bytes: Mapping[str, int]


def sample_in(inside: Sequence[str], nics: Sequence[str], environment: Mapping[str, str]) -> Sample:
    """As samples_in. Raises CalledProcessError where the sampler fails."""
    command = _sampler(inside, "once", nics)
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, check=True)
    return Sample(*json.loads(done.stdout))


@contextmanager
def samples_in(
    inside: Sequence[str], nics: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Callable[[], list[Sample]]]:
    """inside: the words that run what follows them in the server's network. The block gets what
    returns the samples so far. Raises RuntimeError where the sampler ended before the block."""
    command = _sampler(inside, "on", nics)
    with tempfile.NamedTemporaryFile("w") as out:
        with subprocess.Popen(command, stdout=out, cwd=ROOT, env=environment) as process:
            try:
                yield lambda: _read(Path(out.name))
            finally:
                process.terminate()
        if process.returncode != -signal.SIGTERM:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")


def _sampler(inside: Sequence[str], how: str, nics: Sequence[str]) -> list[str]:
    return [*inside, sys.executable, "-m", "benchmarks.job.nic_samples", how, *nics]


def _read(file: Path) -> list[Sample]:
    """A line that is being written is left out."""
    whole, _, _ = file.read_text().rpartition("\n")
    return [Sample(*json.loads(line)) for line in whole.splitlines()]


def _sample(nics: tuple[str, ...]) -> Sample:
    while True:
        now, counters = time.monotonic(), read_counters(nics)
        if time.monotonic() - now < _READ_SECONDS:
            break
    return Sample(
        now,
        {one.interface: one.transmit_bytes for one in counters},
        {one.interface: one.receive_bytes for one in counters},
    )


def _print_samples(how: str, *nics: str) -> None:
    while True:
        one = _sample(nics)
        print(json.dumps([one.seconds, one.sent_bytes, one.received_bytes]), flush=True)
        if how == "once":
            return
        # No sample makes up for a late one: over a short while a rate would be a guess.
        time.sleep(PERIOD_SECONDS)


if __name__ == "__main__":
    _print_samples(*sys.argv[1:])
