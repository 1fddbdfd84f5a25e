"""Item 5, Standard Evaluation (Celeritas): the errors of estimates made from small batches.

It runs `controller evaluate` on devices none of which can hold the step. One error is that of
Celeritas' Table 5: the estimate against the measured ranks. The other is that of the measured ranks
against a direct profile of the same batch on one device.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job.memory import profiled
from benchmarks.table import Table
from placewire.controller.decide.measured.standard_evaluation import Evaluation, evaluate
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import load_placement
from placewire.optimizer.profile.recorded import Deviation, deviation
from placewire.optimizer.profile.rough import held_bytes

MIB = 1 << 20
# With these memories, no device holds its whole step.
CASES = (
    Evaluation("placewire.examples.models.alexnet:training_step", 128, (16, 32, 64), 3, 300 * MIB),
    Evaluation("placewire.examples.models.vgg16:training_step", 32, (4, 8, 16), 3, 400 * MIB),
)


@dataclass(frozen=True)
class Errors:
    memory: Deviation
    time: Deviation

    @staticmethod
    def between(estimated: OperatorGraph, measured: OperatorGraph) -> Errors:
        return Errors(
            deviation(held_bytes(estimated), held_bytes(measured)),
            deviation(estimated.seconds[:, 0], measured.seconds[:, 0]),
        )


def tables(pictures: Path | None) -> Iterable[Table]:
    yield Table(
        title="5. Standard Evaluation: estimated and then measured",
        columns=(
            "model, batch", "from batches", "ranks", "operators", "memory off by", "within 30 %",
            "time off by", "within 30 %", "step", "beside direct: memory", "time", "step",
        ),
        rows=[_row(case) for case in CASES],
        notes=(
            "off by: the mean of |e - a| / a over the operators. e is extrapolated by lines from "
            "the small batches, a is measured on the ranks of a sequential placement (Celeritas, "
            "Table 5: 1.5 to 6 % for memory, 8 to 14 % for time). step: (e - a) / a of the sum of "
            "all times. beside direct: here e is what those ranks measured, and a is a profile of "
            "the whole step on one device.",
        ),
    )  # fmt: skip


def _row(case: Evaluation) -> Sequence[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured = load_graph(asyncio.run(evaluate(case, folder, lambda line: None)))
        estimated = Errors.between(load_graph(folder / "rough.json.gz"), measured)
        ranks = len(load_placement(folder / "placement.json").devices_used)
        direct = Errors.between(measured, profiled(case.model, case.batch, folder))
    model = case.model.removeprefix("placewire.examples.models.").removesuffix(":training_step")
    return (
        f"{model}, {case.batch}", ", ".join(map(str, case.small_batches)), str(ranks),
        str(estimated.time.operators),
        f"{estimated.memory.average:.2%}", f"{estimated.memory.within_30_percent:.0%}",
        f"{estimated.time.average:.2%}", f"{estimated.time.within_30_percent:.0%}",
        f"{estimated.time.whole:+.1%}",
        f"{direct.memory.average:.2%}", f"{direct.time.average:.2%}", f"{direct.time.whole:+.1%}",
    )  # fmt: skip
