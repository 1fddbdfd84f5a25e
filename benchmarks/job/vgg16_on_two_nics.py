"""Item 12: how the gradients of VGG16 use two NICs, by torchrun and by `controller apply`.

It is figure 5.1 of the thesis: what one server's NICs receive over time while two servers train
data-parallel, before and after bandwidth was allocated. The notes of the table say how its setting
differs.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job.nic_samples import PERIOD_SECONDS, samples_in
from benchmarks.job.reception import (
    CARRIES,
    Reception,
    carrying_seconds,
    reception_of,
    steps_of,
    use_of,
)
from benchmarks.job.reception_picture import picture, svg
from benchmarks.job.script_in_lab import MTU_BYTES, NICS, ScriptInLab, by_apply
from benchmarks.table import Table
from placewire.controller.lab import Lab
from placewire.optimizer.quantities import parse_bits_per_second

LAB, NIC_RATE, SERVERS, SERVER = "vgg16", "100Mbit", 2, "s1"
# This counts all ranks.
BATCH, STEPS = 64, 5
SCRIPT = "benchmarks/job/rival.py"
MODEL = "placewire.examples.models.vgg16:training_step"
PICTURE = "job-two-nics.svg"
ONE, BOTH, APPLIED = "torchrun, one NIC", "torchrun, both NICs", "applied"
WHEN = {ONE: "before", BOTH: "before", APPLIED: "after"}


@dataclass(frozen=True)
class Trained:
    """step_seconds: the median of all steps but the first, which warms up."""

    had: Reception
    step_seconds: float

    @property
    def carrying_seconds(self) -> float:
        return carrying_seconds(self.had)


def tables(pictures: Path | None) -> Iterable[Table]:
    arguments = ("ddp", MODEL, str(BATCH), str(STEPS))
    case = ScriptInLab(LAB, SERVERS, NIC_RATE, SCRIPT, arguments)
    with tempfile.TemporaryDirectory() as name:
        plan = case.plan(Path(name))
        with case.lab(plan) as lab:
            runs = {
                ONE: _trained(lab, lambda: case.by_torchrun(lab)),
                BOTH: _trained(lab, lambda: case.by_torchrun(lab, NICS)),
                APPLIED: _trained(lab, lambda: by_apply(plan)[0]),
            }
    notes = notes_of(runs)
    if pictures is not None:
        drawn = picture({f"{WHEN[how]}: {how}": run.had for how, run in runs.items()})
        (pictures / PICTURE).write_text(svg(drawn))
        notes.append(f"![What {SERVER}'s NICs received over time, before and after]({PICTURE})")
    yield Table(
        title="12. VGG16 on two NICs, by torchrun and applied",
        columns=(
            "model, batch", "started", *(f"{nic} of all" for nic in NICS),
            *(f"{nic}, MB a step" for nic in NICS), *(f"{nic}, mean use" for nic in NICS),
            *(f"{nic}, peak use" for nic in NICS), "at full rate, s", "gradients arrive, s",
            "step, s",
        ),
        rows=[_row(how, run) for how, run in runs.items()],
        notes=notes,
    )  # fmt: skip


def _trained(lab: Lab, run: Callable[[], str]) -> Trained:
    with samples_in(lab.inside_server(SERVER, []), NICS, lab.environment) as samples:
        steps = steps_of(run())
        had = reception_of(samples(), steps, NICS, parse_bits_per_second(NIC_RATE))
    return Trained(had, statistics.median([step.end - step.begin for step in steps][1:]))


def _row(how: str, run: Trained) -> Sequence[str]:
    by_nic = [use_of(run.had, row) for row in run.had.nics]
    total = sum(one.bytes for one in by_nic)
    return (
        f"vgg16, {BATCH}", how, *(f"{one.bytes / total:.1%}" for one in by_nic),
        *(f"{one.bytes / 1e6:.1f}" for one in by_nic), *(f"{one.mean:.0%}" for one in by_nic),
        *(f"{one.peak:.0%}" for one in by_nic),
        f"{max(one.at_full_rate_seconds for one in by_nic):.2f}",
        f"{run.carrying_seconds:.2f}", f"{run.step_seconds:.2f}",
    )  # fmt: skip


def notes_of(runs: Mapping[str, Trained]) -> list[str]:
    applied, before = runs[APPLIED], (runs[ONE], runs[BOTH])
    carrying = [f"{applied.carrying_seconds / run.carrying_seconds:.2f}" for run in before]
    step = [f"{applied.step_seconds / run.step_seconds:.2f}" for run in before]
    return [
        f"{SCRIPT} ddp, unmodified: {STEPS} steps of DistributedDataParallel over gloo on the "
        f"whole VGG16 of {MODEL.partition(':')[0]}, AdamW, one process with one thread on each of "
        f"{SERVERS} servers; the batch is that of all. A lab of two NICs of {NIC_RATE}/s a server, "
        f"MTU {MTU_BYTES}. What {SERVER} received, by its NICs' counters, sampled every "
        f"{PERIOD_SECONDS:g} s from the first step's begin to the last one's end. Use: of a NIC's "
        "rate, on average and at most between two samples. At full rate: the least time that its "
        "rate allows for what the busier NIC received in a step. Gradients arrive: the time of a "
        f"step in which a NIC receives {CARRIES:.0%} of its rate or more. Step: the median of all "
        "but the first.",
        "Given both NICs, gloo sends one collective on the first and the next on the second, each "
        "whole. Applied, each large collective is cut, and its parts travel on both NICs at once. "
        f"Gradients then arrive in {carrying[0]} of the time that they take on one NIC, and in "
        f"{carrying[1]} of that in which gloo takes both; the whole step takes {step[0]} of its "
        f"time on one NIC, and {step[1]} of that on both.",
        "It is figure 5.1 of the thesis, which draws what one server's NICs receive, calls its "
        "(b), after bandwidth was allocated, narrower, and gives no numbers. The thesis trains "
        "VGG16 at batch 512 with TensorFlow 2.16 on two servers with a GPU each and two links of 1 "
        "Gbit/s. Here it is PyTorch, a batch an eighth as large, CPUs, and NICs that are ten times "
        "slower.",
    ]  # fmt: skip
