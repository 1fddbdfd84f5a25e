"""Starts real ranks on loopback and reads their events."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placewire.job.contract.specification import (
    Failed,
    Finished,
    RailInterface,
    RankEvent,
    RankSpec,
    StepDone,
    parse_rank_event,
)
from placewire.optimizer.placement import Placement, save_placement
from tests.forking import Forked, Forking
from tests.free_port import free_port
from tests.paths import ROOT

# Far above what is needed: the machine may be busy with other work.
LONGEST_SECONDS = 600


@dataclass
class Rank:
    spec: RankSpec
    process: subprocess.Popen[bytes] | Forked
    events: list[RankEvent] = field(default_factory=list)
    errors: str = ""

    def finish(self, seconds: float) -> int:
        """Returns the exit code; kills the rank and fails when it takes longer."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"rank {self.spec.rank} hung: {err.decode()[-2000:]}") from None
        self.events.extend(parse_rank_event(line) for line in out.splitlines())
        self.errors = err.decode()
        assert self.process.returncode is not None
        return self.process.returncode

    @property
    def losses(self) -> list[float]:
        steps = [event for event in self.events if isinstance(event, StepDone)]
        return [step.loss for step in steps if step.loss is not None]

    @property
    def step_seconds(self) -> list[float]:
        return [event.seconds for event in self.events if isinstance(event, StepDone)]

    @property
    def finished(self) -> Finished:
        return next(event for event in self.events if isinstance(event, Finished))

    @property
    def failed(self) -> Failed:
        return next(event for event in self.events if isinstance(event, Failed))


def start_ranks(
    placement: Placement,
    folder: Path,
    rails: tuple[str, ...] = ("a",),
    last: Mapping[str, Any] | None = None,
    prefixes: Sequence[Sequence[str]] = (),
    forked: bool = True,
    captured_once: bool = False,
    **options: Any,
) -> list[Rank]:
    """One process per used device; options as in RankSpec, `last` for the last rank only.

    prefixes: what each rank's command is run by, for example `ip netns exec NAME`.
    forked: from a process that has imported all; otherwise, and behind a prefix, as users' ranks.
    captured_once: forked ranks get their step from a process that captures it for all, as also for
    later runs. The model must not lie in a temporary folder, and not change.

    Models are looked for in the folder and beside the tests of the optimizer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_placement(placement, folder / "placement.json")
    paths = (str(folder), str(ROOT))
    specs = specs_on_loopback(placement, folder / "placement.json", rails, **options)
    if last:
        specs[-1] = specs[-1].model_copy(update=dict(last))
    ranks = []
    for number, spec in enumerate(specs):
        file = folder / f"rank{number}.json"
        file.write_text(text := spec.model_dump_json())
        if forked and not prefixes:
            before = ("tests.job.shared_capture", "share_capture", text) if captured_once else None
            process = _forking().start(
                "placewire.job", str(file), paths=paths, environment=os.environ, before=before
            )
            ranks.append(Rank(spec, process))
        else:
            ranks.append(Rank(spec, _started(prefixes[number] if prefixes else (), file, paths)))
    return ranks


@functools.cache
def _forking() -> Forking:
    """Returns a process that has imported what a rank imports."""
    runtime = (
        "placewire.job.placed.runtime",
        "placewire.job.calibration.calibrate",
        "placewire.job.placed.checkpoint",
    )
    return Forking("torch", *runtime, "torch._dynamo", "torch.export")


def _started(prefix: Sequence[str], file: Path, paths: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "placewire.job", str(file)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ":".join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def specs_on_loopback(
    placement: Placement, file: Path, rails: Sequence[str], **options: Any
) -> list[RankSpec]:
    """Returns one specification per used device. file: the placement's."""
    devices, port = placement.devices_used, free_port()
    interfaces = tuple(
        RailInterface(rail=rail, interface="lo", address="127.0.0.1") for rail in rails
    )
    shared = {
        "world_size": len(devices),
        "master_address": "127.0.0.1",
        "master_tcp_port": port,
        "rail_interfaces": interfaces,
        "placement_file": str(file),
        "timeout_seconds": LONGEST_SECONDS,
        # A rank in the idle class may be held up for longer than a job's ranks may be silent.
        "loss_seconds": LONGEST_SECONDS,
        **options,
    }
    return [
        RankSpec.model_validate({"rank": rank, "device": device, **shared})
        for rank, device in enumerate(devices)
    ]


def run_ranks(
    placement: Placement,
    folder: Path,
    rails: tuple[str, ...] = ("a",),
    seconds: float = LONGEST_SECONDS,
    **options: Any,
) -> list[Rank]:
    """Runs all ranks; fails where one does not end successfully."""
    ranks = start_ranks(placement, folder, rails, **options)
    try:
        codes = [rank.finish(seconds) for rank in ranks]
    finally:
        end(ranks)
    assert codes == [0] * len(ranks), [(rank.events, rank.errors[-3000:]) for rank in ranks]
    return ranks


def end(ranks: list[Rank]) -> None:
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.kill()
            rank.process.communicate()
