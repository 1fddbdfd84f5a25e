"""Solves one request in a process of its own, which measured.py times.

stdin: {graph, cluster, engine, sharing, model, reduction, time_limit, gap, seed, moves, from_start,
out}.
stdout: {peak_memory_bytes} and {startup_seconds, trace: [[seconds, incumbent, bound], …],
engine_seconds, considered: {sharing: step}}, or else {refusal}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, get_args

from benchmarks.report import peak_memory_bytes
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.best_sharing import place_under_best_sharing
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.solution import Progress
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import save_placement
from placewire.optimizer.problem import Problem, SolveSettings


def main() -> None:
    ask = json.loads(sys.stdin.read())
    try:
        answer = _solve(ask)
    except ValueError as refusal:  # infeasible, too large, or no incumbent in time: an answer
        answer = {"refusal": f"{type(refusal).__name__}: {refusal}"}
    print(json.dumps({**answer, "peak_memory_bytes": peak_memory_bytes()}))


def _seconds_since_start() -> float:
    """The age of this process, to a hundredth of a second."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(") ", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _solve(ask: dict[str, Any]) -> dict[str, Any]:
    trace: list[tuple[float, float, float]] = []
    graph = load_graph(Path(ask["graph"]))
    cluster = Cluster.model_validate(ask["cluster"])
    startup_seconds = _seconds_since_start()
    limit = ask["time_limit"] - (startup_seconds if ask["from_start"] else 0.0)
    settings = SolveSettings(
        gap=ask["gap"], time_limit_seconds=limit, seed=ask["seed"], moves=ask["moves"]
    )
    began = time.monotonic()

    def progress(report: Progress) -> None:
        incumbent, bound = report.incumbent_seconds, report.bound_seconds
        if not trace or incumbent < trace[-1][1] or bound > trace[-1][2]:
            trace.append((time.monotonic() - began, incumbent, bound))

    if ask["sharing"] == "auto":
        problem = Problem(graph, cluster, model=ask["model"])
        best, considered = place_under_best_sharing(
            problem, get_args(SharingName), ask["engine"], settings, ask["reduction"], progress
        )
    else:
        problem = Problem(graph, cluster, ask["sharing"], ask["model"])
        best = place(problem, ask["engine"], settings, ask["reduction"], progress)
        considered = (best,)
    engine_seconds = time.monotonic() - began
    save_placement(best, Path(ask["out"]))
    return {
        "startup_seconds": startup_seconds,
        "trace": trace,
        "engine_seconds": engine_seconds,
        "considered": {p.sharing: p.step_seconds for p in considered},
    }


if __name__ == "__main__":
    main()
