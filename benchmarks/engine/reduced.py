"""Item 6: what each reduction makes of our captures, beside the thesis' figures for its own."""

from __future__ import annotations

from typing import get_args

from benchmarks.engine.setting import CAPTURED, captured_file, cluster, graph_of
from benchmarks.table import Table, milliseconds
from optimizer.names import ReductionName
from optimizer.problem import Problem
from optimizer.reductions.report import reduction_report

# Thesis, table 5.1 (TensorFlow graphs): operators before, after, groups, seconds.
PUBLISHED = {
    "alexnet": (1656, 120, 13, 0.1),
    "vgg16": (3652, 206, 16, 0.1),
    "fnet": (7186, 473, 61, 0.4),
    "bert": (12716, 580, 64, 1.2),
}


def table() -> Table:
    rows = []
    for name in CAPTURED:
        problem = Problem(graph_of(captured_file(name)), cluster(20.0))
        for reduction in get_args(ReductionName):
            if reduction == "none":
                continue
            found = reduction_report(problem, reduction)
            longer = found.critical_path_after_seconds / found.critical_path_before_seconds - 1
            rows.append(
                [
                    f"{name}, {reduction}",
                    f"{found.operators_before} -> {found.operators_after}",
                    str(found.groups),
                    milliseconds(found.critical_path_before_seconds),
                    f"{longer:+.1%}",
                    f"{found.wall_seconds:.2f}",
                ]
            )
        if name in PUBLISHED:
            before, after, groups, seconds = PUBLISHED[name]
            published = [f"{before} -> {after}", str(groups), "-", "+10..12 %", f"{seconds}"]
            rows.append([f"{name}, as published", *published])
    return Table(
        title="6. Reductions of our captures",
        columns=("graph, reduction", "operators", "groups", "path ms", "path after", "s"),
        rows=rows,
        notes=(
            "path: the longest path of operator times. As published: thesis, table 5.1, whose "
            "TensorFlow graphs count more and smaller operators.",
        ),
    )
