"""Solves cases one after the other, each in a process of its own, and keeps every row at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from placewire.optimizer.published.comparison.cases import Case
from placewire.optimizer.published.comparison.rows import Row, RowsFile
from placewire.optimizer.quantities import format_step

# A process is ended after this many times its limit, plus what compiling before, and reading and
# judging may take.
_PATIENCE, _COMPILING_SECONDS, _JUDGING_SECONDS = 1.5, 300.0, 60.0

Say = Callable[[str], None]


def compare(cases: Iterable[Case], rows: RowsFile, say: Say) -> list[Row]:
    """The rows of the cases, in their order; only cases without a row in the file are solved.

    Placements are written beside the file, as placements/KEY.json.gz. Raises OSError.
    """
    asked = list(cases)
    missing = [case for case in asked if case.key not in rows.rows]
    if len(missing) < len(asked):
        say(f"{len(asked) - len(missing)} of {len(asked)} cases are in {rows.path} already")
    for number, case in enumerate(missing, 1):
        method = case.method
        say(
            f"[{number}/{len(missing)}] {case.graph.name} on {case.on.name}: {method.engine}, "
            f"reduction {method.reduction}, {method.model}, seed {method.seed}; at most "
            f"{method.time_limit_seconds:g} s"
        )
        row = solve_case(case, rows.path.parent / "placements")
        rows.add(row)
        say(f"    {_in_words(row)}")
    return [rows.rows[case.key] for case in asked]


def solve_case(case: Case, placements: Path) -> Row:
    """Raises OSError where nothing can be written or started."""
    placements.mkdir(parents=True, exist_ok=True)
    request = {
        "graph": str(case.graph.file),
        "cluster": case.on.cluster.model_dump(mode="json"),
        **vars(case.method),
        "placement": str(placements / f"{case.key}.json.gz"),
    }
    method = dict(vars(case.method))
    limit = method.pop("time_limit_seconds")
    patience = _PATIENCE * limit + _COMPILING_SECONDS + _JUDGING_SECONDS
    return Row(
        key=case.key, graph=case.graph.name, operators=case.graph.operators, cluster=case.on.name,
        limit_seconds=limit, **method, **_answer(request, patience),
    )  # fmt: skip


def _answer(request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The worker's answer; without one, how the worker ended."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "placewire.optimizer.published.comparison.worker"],
            stdin=subprocess.PIPE, stdout=out, stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()  # and stays open: the worker ends when its standard input does
            status: int | None = worker.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        except BrokenPipeError:
            status = worker.wait()
        finally:
            _end(worker)
        took = round(time.monotonic() - began, 4)
        out.seek(0)
        errors.seek(0)
        if status == 0:
            answer: dict[str, Any] = json.loads(out.read())
            return answer
        outcome, why = "overran", f"ended after {took:.0f} s"
        if status is not None:
            said = errors.read().decode(errors="replace").strip().splitlines()
            outcome, why = "broken", said[-1] if said else f"the process ended with {status}"
        return {"outcome": outcome, "why": why, "search_seconds": took}


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Ends the worker and all that it started, which is in its session."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    if worker.stdin is not None:
        worker.stdin.close()


def _in_words(row: Row) -> str:
    took = f"in {row.search_seconds:.1f} s"
    if row.contended_seconds is None or row.outcome != "placed":
        return f"{row.outcome} {took}: {row.why}"
    own = ""
    if row.model != "contended" and row.step_seconds is not None:
        own = f" ({format_step(row.step_seconds)} under {row.model})"
    return f"{format_step(row.contended_seconds)}{own} {took}, {row.devices_used} devices"
