"""Solves one case: `python -m placewire.optimizer.published.comparison.worker`.

The first line of standard input is the case as JSON, {graph, cluster, engine, reduction, model,
seed, gap, time_limit_seconds, solver, sort, moves, without, sharing, placement}; standard output
gets the fields of rows.Row that the solve decides. Nothing is compiled or imported while the solve
is timed. The program ends when its standard input does, because whoever asked is gone then. What
solvers print goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import BrokenRuleError, OutOfTimeError
from placewire.optimizer.engines.solution import Progress
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import DEFAULT_SHARING
from placewire.optimizer.placement import Placement, load_placement, save_placement
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.comparison.rescoring import step_under
from placewire.optimizer.published.comparison.warm_up import warm_up


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_asker, daemon=True).start()
    answer = _solved(asked)
    answer["peak_memory_bytes"] = _peak_memory_bytes()
    json.dump(answer, answers)
    answers.flush()
    os._exit(0)


def _end_with_the_asker() -> None:
    os.read(0, 1)
    os._exit(1)


def _solved(asked: dict[str, Any]) -> dict[str, Any]:
    graph = load_graph(Path(asked["graph"]))
    cluster = Cluster.model_validate(asked["cluster"])
    settings = settings_of(asked)
    with suppress(ValueError):  # which the solve meets again, and reports
        problem = Problem(graph, cluster, asked["sharing"], asked["model"])
        warm_up(problem, asked["engine"], settings, asked["reduction"])
    found: list[tuple[float, float]] = []
    began, before = time.monotonic(), _processor_seconds()

    def heard(progress: Progress) -> None:
        step = progress.incumbent_seconds
        if step < (found[-1][1] if found else float("inf")):
            found.append((round(time.monotonic() - began, 4), step))

    own_found: list[tuple[float, float, float]] = []

    def heard_own(progress: Progress) -> None:
        step, bound = progress.incumbent_seconds, progress.bound_seconds
        if isfinite(step) and (step, bound) != (own_found[-1][1:] if own_found else None):
            own_found.append((round(time.monotonic() - began, 4), step, bound))

    placement, outcome, why = None, "placed", ""
    settings = replace(settings, options={**settings.options, "own_progress": heard_own})
    try:
        problem = Problem(graph, cluster, asked["sharing"], asked["model"])
        placement = place(problem, asked["engine"], settings, asked["reduction"], heard)
    except InfeasibleError as error:
        outcome, why = "infeasible", str(error)
    except OutOfTimeError as error:
        outcome, why = "out of time", str(error)
    except BrokenRuleError as error:
        outcome, why = "broken", str(error)
    except ValueError as error:
        outcome, why = "refused", str(error)
    answer: dict[str, Any] = {
        "outcome": outcome,
        "why": why,
        "found": found,
        "own_found": own_found,
        "search_seconds": round(time.monotonic() - began, 4),
        "processor_seconds": round(_processor_seconds() - before, 4),
    }
    return answer if placement is None else answer | _judged(graph, placement, asked["placement"])


def settings_of(asked: dict[str, Any]) -> SolveSettings:
    return SolveSettings(
        gap=asked["gap"], time_limit_seconds=asked["time_limit_seconds"], seed=asked["seed"],
        moves=asked["moves"],
        options={
            "solver": asked["solver"], "sort": asked["sort"], "without": tuple(asked["without"])
        },
    )  # fmt: skip


def _judged(graph: OperatorGraph, placement: Placement, file: str) -> dict[str, Any]:
    """Writes the placement, loads it again, checks it and scores it under the yardstick of all
    rows."""
    save_placement(placement, Path(file))
    violations = check(graph, load_placement(Path(file)))
    step, fits, bound = placement.step_seconds, True, placement.bound_seconds
    if (placement.model, placement.sharing) != ("contended", DEFAULT_SHARING):
        step, fits = step_under(graph, placement, "contended", DEFAULT_SHARING)
        bound = lower_bound(Problem(graph, placement.cluster)).seconds
    answer = {
        "reduced": placement.reduction,
        "step_seconds": placement.step_seconds,
        "contended_seconds": step,
        "bound_seconds": bound,
        "single_device_seconds": placement.single_device_seconds,
        "fits": fits,
        "checked": not violations,
        "devices_used": len(placement.devices_used),
    }
    if violations:
        answer |= {"outcome": "broken", "why": str(violations[0])}
    return answer


def _processor_seconds() -> float:
    """The processor time of this process and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _peak_memory_bytes() -> int:
    """The peak of this process or of a child, whichever was larger."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    status = Path("/proc/self/status").read_text()
    return max(int(status.split("VmHWM:")[1].split()[0]) * 1024, children)


if __name__ == "__main__":
    main()
