"""Item 4: every sharing of the network, each with its own best placement, replayed in a lab.

The step is cut as suits it, into the same micro-batches and shards under all sharings. Each row is
measured quiet, and beside a neighbour that is not part of the job: eight greedy flows from the
first server on each of its NICs. For some rows eight more flow to that server, which no queue of
the job's servers holds back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.setting import DEVICE
from benchmarks.engine.sharings import neighbour_share
from benchmarks.job.replays import Replay, Replayed, replayed
from benchmarks.job.slow_motion import Placed, SlowMotion, solved
from benchmarks.table import Table
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.place import place
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem, SolveSettings

MODELS = ("vgg16 512", "bert 64")
SETTING = SlowMotion(servers=4, nics=2, gigabits=20.0, setup_latency_seconds=50e-6)
SHARINGS: tuple[SharingName, ...] = ("job", "guarantee", "strict", "even", "unshaped")
# For all sharings together; a placement on one NIC has its part.
SOLVE_SECONDS = 60.0
# The first step does not count; beside the neighbour there is one more, and two do not count.
STEPS = 3
OUT, BOTH = ("out",), ("out", "in")
# The rows that are also measured with flows into the first server.
WITH_FLOWS_IN: tuple[SharingName, ...] = ("job", "unshaped")
# (a row, or `off` for `job` without its send order; how it is run)
Run = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """quiet, busy: the best placement where the job has the NICs to itself, and beside the
    neighbour; busy is None where the placement uses no network."""

    name: str
    quiet: Placed
    busy: Placed | None


def tables(pictures: Path | None) -> Iterable[Table]:
    for model in MODELS:
        yield from graph_tables(model)


def graph_tables(model: str) -> tuple[Table, ...]:
    rows = _rows(model)
    jobs = _jobs(model, rows)
    runs = dict(zip(jobs, replayed(list(jobs.values())), strict=True))
    return (
        _sharings_table(model, rows, runs),
        _flows_in_table(model, rows, runs),
        _order_table(model, rows[0], runs),
    )


def _rows(model: str) -> list[Row]:
    """Every sharing, then one NIC unshaped, then one device."""
    slow = [SETTING.slowed(graph) for graph in SETTING.variants(model)]
    quiet, busy = (
        solved(slow, _lab(SETTING.nics, b), "auto", SOLVE_SECONDS) for b in (False, True)
    )
    seconds = SOLVE_SECONDS / len(SHARINGS)
    one = [solved(slow, _lab(1, b), "unshaped", seconds)["unshaped"] for b in (False, True)]
    problem = Problem(slow[0], SETTING.lab(), sharing="job")
    alone = Placed(slow[0], place(problem, "single", SolveSettings()))
    return [
        *(Row(name, quiet[name], busy[name]) for name in SHARINGS),
        Row("one NIC", *one), Row("one device", alone, None),
    ]  # fmt: skip


def _lab(nics: int, busy: bool) -> Cluster:
    """busy: whether the neighbour wants all of the first server's NICs."""
    quiet = SETTING.lab(nics)
    if not busy:
        return quiet
    first, *others = quiet.servers
    wanted = tuple(
        nic.model_copy(update={"background_bits_per_second": nic.rate_bits_per_second})
        for nic in first.nics
    )
    return quiet.model_copy(
        update={"servers": (first.model_copy(update={"nics": wanted}), *others)}
    )


def _jobs(model: str, rows: list[Row]) -> dict[Run, Replay]:
    """The replays by run; the quiet ones come first."""
    jobs: dict[Run, Replay] = {}
    for row in rows:
        jobs[row.name, "quiet"] = _replay(f"{model}, {row.name}, quiet", row.quiet, STEPS)
    for row in rows:
        if row.busy is not None:
            told, beside = f"{model}, {row.name}, neighbour", (row.busy, STEPS + 1, 2)
            jobs[row.name, "neighbour"] = _replay(told, *beside, OUT)
            if row.name in WITH_FLOWS_IN:
                jobs[row.name, "in"] = _replay(f"{told}, in too", *beside, BOTH)
    job, off = rows[0], {"urgent_first": False}
    assert job.name == "job" and job.busy is not None
    told = f"{model}, job without order"
    jobs["off", "quiet"] = _replay(f"{told}, quiet", job.quiet, STEPS, spec=off)
    jobs["off", "neighbour"] = _replay(f"{told}, neighbour", job.busy, STEPS + 1, 2, OUT, off)
    return jobs


def _replay(name: str, placed: Placed, *how: Any, **more: Any) -> Replay:
    return Replay(name, placed.graph, placed.placement, *how, **more)


def _sharings_table(model: str, rows: list[Row], runs: dict[Run, Replayed]) -> Table:
    shown = []
    for row in rows:
        cells = [row.name, *_compared(row.quiet.placement, runs[row.name, "quiet"])]
        if row.busy is None:
            shown.append([*cells, *[""] * 5])
            continue
        run = runs[row.name, "neighbour"]
        predicted = neighbour_share(row.busy.graph, row.busy.placement)
        got = _got(row.busy.placement, run, "out")
        shown.append([*cells, *_compared(row.busy.placement, run), f"{predicted:.0%}", got])
    return Table(
        title=f"4. Sharings, replayed: {model}, {rows[0].quiet.graph.operator_count} operators, "
        f"{SETTING.servers} servers x {SETTING.nics} NICs",
        columns=(
            "sharing", "quiet: predicted, s", "measured, s", "error", "neighbour: predicted, s",
            "measured, s", "error", "it gets: predicted", "measured",
        ),
        rows=shown,
        notes=(
            f"NICs of {SETTING.gigabits:g} Gbit/s in slow motion, {SETTING.slower:g} times: divide "
            f"by it for seconds of the real cluster; p0 {SETTING.setup_latency_seconds * 1e6:g} us "
            f"there. Modelled times of {DEVICE}. Each row has its own placements, found in "
            f"{SOLVE_SECONDS:g} s for all sharings, one for quiet NICs and one for a declared "
            "neighbour.",
            "Neighbour: 8 TCP flows out of the first server on each NIC that the row uses; what it "
            "gets, of the NICs' rate (predicted: of both directions).",
        ),
    )  # fmt: skip


def _flows_in_table(model: str, rows: list[Row], runs: dict[Run, Replayed]) -> Table:
    shown = []
    for row in rows:
        run = runs.get((row.name, "in"))
        if run is not None and row.busy is not None:
            got = [_got(row.busy.placement, run, way) for way in BOTH]
            shown.append([row.name, *_compared(row.busy.placement, run), *got])
    return Table(
        title=f"4. The same with 8 more flows into the first server: {model}",
        columns=("sharing", "predicted, s", "measured, s", "error", "neighbour out", "in"),
        rows=shown,
        notes=("Nothing shapes what strangers send: their own servers would have to.",),
    )


def _got(placement: Placement, run: Replayed, way: str) -> str:
    return f"{run.neighbour[way] / float(placement.cluster.background.sum()):.0%}"


def _order_table(model: str, job: Row, runs: dict[Run, Replayed]) -> Table:
    assert job.busy is not None
    rows = []
    for how, placed in (("quiet", job.quiet), ("neighbour", job.busy)):
        on, off = runs["job", how], runs["off", how]
        longer = off.step_seconds / on.step_seconds - 1
        rows.append([
            how, f"{placed.placement.step_seconds:.3f}", f"{on.step_seconds:.3f}",
            f"{off.step_seconds:.3f}", f"{longer:+.1%}",
        ])  # fmt: skip
    return Table(
        title=f"4. Send order of `job`, on against off: {model}",
        columns=("", "predicted, s", "urgent first, s", "as they come, s", "longer by"),
        rows=rows,
    )


def _compared(placement: Placement, run: Replayed) -> list[str]:
    error = run.step_seconds / placement.step_seconds - 1
    return [f"{placement.step_seconds:.3f}", f"{run.step_seconds:.3f}", f"{error:+.1%}"]
