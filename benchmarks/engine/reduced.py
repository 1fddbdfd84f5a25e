"""Item 6: what each reduction makes of our captures, beside the figures of the thesis and Celeritas
for their own graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine.setting import CAPTURED, GIGABITS, captured_file, cluster
from benchmarks.table import Table, milliseconds
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.comparison.reduction_report import reduction_report
from placewire.optimizer.reductions.reduction import REDUCTIONS
from placewire.optimizer.reductions.refusals import ReductionRefusedError

# Thesis, table 5.1 (TensorFlow graphs): operators before, after, groups, seconds.
PUBLISHED = {
    "alexnet": (1656, 120, 13, 0.1),
    "vgg16": (3652, 206, 16, 0.1),
    "fnet": (7186, 473, 61, 0.4),
    "bert": (12716, 580, 64, 1.2),
}


def tables(_: Path | None) -> Iterator[Table]:
    rows = []
    for name in CAPTURED:
        problem = Problem(load_graph(captured_file(name)), cluster(GIGABITS))
        for reduction in REDUCTIONS.names:
            if reduction == "none":
                continue
            try:
                found = reduction_report(problem, reduction)
            except ReductionRefusedError:
                rows.append([f"{name}, {reduction}", "refused", "-", "-", "-", "-", "-"])
                continue
            longer = found.critical_path_after_seconds / found.critical_path_before_seconds - 1
            rows.append([
                f"{name}, {reduction}", f"{found.operators_before} -> {found.operators_after}",
                str(found.groups), milliseconds(found.critical_path_before_seconds),
                f"{longer:+.1%}", f"{found.ccr_before:.2f} -> {found.ccr_after:.2f}",
                f"{found.wall_seconds:.2f}",
            ])  # fmt: skip
        if name in PUBLISHED:
            before, after, groups, seconds = PUBLISHED[name]
            published = [f"{before} -> {after}", str(groups), "-", "-", "-", f"{seconds}"]
            rows.append([f"{name}, as published", *published])
    yield Table(
        title="6. Reductions of our captures",
        columns=("graph, reduction", "operators", "groups", "path ms", "path after", "CCR", "s"),
        rows=rows,
        notes=(
            "path: the longest path of operator times. As published: thesis, table 5.1, whose "
            "TensorFlow graphs count more and smaller operators. CCR: seconds of all transfers "
            "over seconds of all operators, Celeritas (1), at 20 Gbit/s a NIC; Celeritas' table 2 "
            "has 18.6 to 112 before its fusion and 6.4 to 11.1 after it.",
        ),
    )
