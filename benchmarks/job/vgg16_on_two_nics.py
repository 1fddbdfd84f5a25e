"""Item 12: how the gradients of VGG16 use two NICs, by torchrun and by `controller apply`.

It is figure 5.1 of the thesis: what one server's NICs receive over time while two servers train
with DistributedDataParallel, before and after bandwidth was allocated. Its testbed has NICs of
1 Gbit/s; those of a lab are ten times slower.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job.nic_samples import PERIOD_SECONDS, samples_in
from benchmarks.job.nic_use import CARRIES, carrying_seconds, received, steps_of, use_of
from benchmarks.job.nic_use_picture import picture, svg
from benchmarks.job.script_in_lab import MTU_BYTES, RAILS, ScriptInLab, by_apply
from benchmarks.table import Table
from placewire.controller.lab import Lab
from placewire.controller.records.nic_use import NicUse
from placewire.optimizer.quantities import parse_bits_per_second

LAB, NIC_RATE, SERVERS, SERVER = "vgg16", "100Mbit", 2, "s1"
NICS = {f"nic{number}": rail for number, rail in enumerate(RAILS)}
BATCH, STEPS = 32, 5
SCRIPT = "benchmarks/job/rival.py"
MODEL = "placewire.examples.models.vgg16:training_step"
PICTURE = "job-two-nics.svg"
BEFORE, AFTER = "torchrun, one NIC", "applied"


@dataclass(frozen=True)
class Trained:
    """step_seconds: the median of all steps but the first, which warms up."""

    use: NicUse
    step_seconds: float


def tables(pictures: Path | None) -> Iterable[Table]:
    arguments = ("ddp", MODEL, str(SERVERS * BATCH), str(STEPS))
    case = ScriptInLab(LAB, SERVERS, NIC_RATE, SCRIPT, arguments)
    with tempfile.TemporaryDirectory() as name:
        plan = case.plan(Path(name))
        with case.lab(plan) as lab:
            runs = {
                BEFORE: _trained(lab, lambda: case.by_torchrun(lab)),
                AFTER: _trained(lab, lambda: by_apply(plan)[0]),
            }
    notes = _notes()
    if pictures is not None:
        drawn = picture({
            f"{when}: {how}": runs[how].use for when, how in (("before", BEFORE), ("after", AFTER))
        })  # fmt: skip
        (pictures / PICTURE).write_text(svg(drawn))
        notes.append(f"![What {SERVER}'s NICs received over time, before and after]({PICTURE})")
    yield Table(
        title="12. VGG16 on two NICs, by torchrun and applied",
        columns=(
            "model, batch of a server", "started", *(f"{nic} of all" for nic in NICS),
            *(f"{nic}, MB a step" for nic in NICS), *(f"{nic}, mean use" for nic in NICS),
            *(f"{nic}, peak use" for nic in NICS), "at full rate, s", "gradients arrive, s",
            "step, s",
        ),
        rows=[_row(how, run) for how, run in runs.items()],
        notes=notes,
    )  # fmt: skip


def _trained(lab: Lab, run: Callable[[], str]) -> Trained:
    with samples_in(lab.inside_server(SERVER, []), tuple(NICS), lab.environment) as samples:
        steps = steps_of(run())
        use = use_of(samples(), steps, SERVER, NICS, parse_bits_per_second(NIC_RATE))
    return Trained(use, statistics.median([step.end - step.begin for step in steps][1:]))


def _row(how: str, run: Trained) -> Sequence[str]:
    by_nic = [received(run.use, row) for row in run.use.nics]
    total = sum(one.bytes for one in by_nic)
    return (
        f"vgg16, {BATCH}", how, *(f"{one.bytes / total:.1%}" for one in by_nic),
        *(f"{one.bytes / 1e6:.1f}" for one in by_nic), *(f"{one.mean:.0%}" for one in by_nic),
        *(f"{one.peak:.0%}" for one in by_nic),
        f"{max(one.at_full_rate_seconds for one in by_nic):.2f}",
        f"{carrying_seconds(run.use):.2f}", f"{run.step_seconds:.2f}",
    )  # fmt: skip


def _notes() -> list[str]:
    return [
        f"{SCRIPT} ddp, unmodified: {STEPS} steps of DistributedDataParallel over gloo on the "
        f"whole VGG16 of {MODEL.partition(':')[0]}, AdamW, one process on each of {SERVERS} "
        f"servers. A lab of two NICs of {NIC_RATE}/s a server, MTU {MTU_BYTES}. What {SERVER} "
        f"received, by its NICs' counters, sampled every {PERIOD_SECONDS:g} s from the first "
        "step's begin to the last one's end. Use: of a NIC's rate, on average and at most between "
        "two samples. At full rate: the least time that its rate allows for what the busier NIC "
        f"received in a step. Gradients arrive: the time of a step in which a NIC receives "
        f"{CARRIES:.0%} of its rate or more. Step: the median of all but the first.",
        "It is figure 5.1 of the thesis, which draws what one server's NICs receive, and gives no "
        "numbers: VGG16 at batch 512 on two servers with two NICs of 1 Gbit/s each. Here the NICs "
        "are ten times slower.",
    ]  # fmt: skip
