"""Item 3, real training: predicted and measured steps where every rank has a core of its own.

`controller apply` in a lab of two servers, neither with the memory for the whole model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.job.replays import ROOT
from benchmarks.table import Table

SERVERS, RAILS = ("s1", "s2"), ("a", "b")
# Large frames: a megabyte of small ones takes these cores three times as long to switch.
NIC_RATE, MTU_BYTES, SETUP_LATENCY = "40Mbit", 9000, "500us"
# Long enough for the machine's own changes of speed to be in both, the profile and the training.
STEPS = 40


@dataclass(frozen=True)
class Case:
    model: str
    batch: int
    memory: str
    sharing: str


CASES = (
    Case("alexnet", 128, "300MiB", "strict"),
    Case("alexnet", 128, "300MiB", "job"),
    Case("vgg16", 32, "450MiB", "strict"),
    Case("vgg16", 32, "450MiB", "unshaped"),
    Case("bert", 4, "1300MiB", "guarantee"),
)


def tables(pictures: Path | None) -> Iterable[Table]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lab = _written(folder, "lab", CASES[0])
        _controller("lab", "up", str(lab))
        try:
            reports = [_applied(folder, case) for case in CASES]
        finally:
            _controller("lab", "down", str(lab))
    errors = [_error(report) for report in reports]
    yield Table(
        title="3. Predicted and measured steps: training, one core a rank",
        columns=(
            "model, batch", "sharing", "operators", "MB a step", "predicted, s", "measured, s",
            "error",
        ),
        rows=[_row(*row) for row in zip(CASES, reports, errors, strict=True)],
        notes=(
            f"Two servers of a lab, one rank on each, {len(RAILS)} NICs of {NIC_RATE}/s, MTU "
            f"{MTU_BYTES}; both profiled at once, each on a core, by the apply that trains; the "
            f"median of {STEPS - 1} steps after the first. Worst {max(map(abs, errors)):.1%}. The "
            "lab's switches use the same two cores.",
        ),
    )  # fmt: skip


def _row(case: Case, report: dict[str, Any], error: float) -> Sequence[str]:
    sent = sum(row["planned_bytes"] for row in report["traffic"])
    return (
        f"{case.model}, {case.batch}", case.sharing, str(report["operators"]), f"{sent / 1e6:.1f}",
        f"{report['predicted_step_seconds']:.3f}", f"{report['measured_step_seconds']:.3f}",
        f"{error:+.1%}",
    )  # fmt: skip


def _error(report: dict[str, Any]) -> float:
    return float(report["measured_step_seconds"] / report["predicted_step_seconds"]) - 1.0


def _applied(folder: Path, case: Case) -> dict[str, Any]:
    plan = _written(folder, f"{case.model}-{case.sharing}", case)
    report = plan.with_suffix(".run.json")
    print(f"  … {case.model}, {case.batch}, {case.sharing}", file=sys.stderr, flush=True)
    _controller("apply", str(plan), "--yes", "--out", str(report))
    found: dict[str, Any] = json.loads(report.read_text())
    if not found["server_pairs"]:
        raise RuntimeError(f"{case}: all on one server: this shows nothing")
    print(f"    {' '.join(_row(case, found, _error(found)))}", file=sys.stderr, flush=True)
    return found


def _written(folder: Path, name: str, case: Case) -> Path:
    nics = [(k, rail) for k, rail in enumerate(RAILS)]
    servers = [
        {
            "name": server,
            "management": f"10.9.0.{number}",
            # A type for each server, so that each is measured on its own core, and both at once, as
            # they will train: what two cores of one machine share, memory above all, is in both.
            # And types of its own for each case: no case rests on another's profile.
            "devices": [{"type": f"cpu:{server}-{case.sharing}", "memory": case.memory}],
            "nics": [
                {
                    "name": f"nic{k}", "rail": rail, "address": f"10.7.{k}.{number}/24",
                    "rate": NIC_RATE, "mtu": MTU_BYTES, "take_over": True,
                }
                for k, rail in nics
            ],
        }
        for number, server in enumerate(SERVERS, start=1)
    ]  # fmt: skip
    document = {
        "version": 1,
        "name": "training",
        "cluster": {
            "setup_latency": SETUP_LATENCY,
            "intra_server_bandwidth": "10Gbit",
            "servers": servers,
        },
        "job": {
            "kind": "placed",
            "model": f"examples.models.{case.model}:training_step",
            "batch": case.batch,
            "optimizer": {"name": "adamw", "lr": 1e-3},
            "steps": STEPS,
        },
        "solve": {"time_limit": "20s", "seed": 1},
        "network": {"sharing": case.sharing},
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def _controller(*arguments: str) -> None:
    """Raises RuntimeError with what it said last where it fails."""
    command = [sys.executable, "-m", "controller.cli", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(arguments)} ended with {done.returncode}\n{done.stdout[-2000:]}"
        )
