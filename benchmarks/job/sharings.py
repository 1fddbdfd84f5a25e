"""Item 4: every sharing of the network, each with its own best placement, replayed in a lab.

The step is cut as suits it. What the search found for one row, quiet or beside the neighbour, is
tried in the other rows of its table too, so that no row is longer than another by the search's
chance alone. Each row is measured quiet, and beside a neighbour that is not part of the job: eight
greedy flows from the first server on each of its NICs. For one model and rate eight more flow to
that server, which no queue of the job's servers holds back.

A model at a rate takes about three minutes of searches; two minutes of VGG16's steps, or eight of
BERT's; and 15 changes of the lab's network. That would be an hour and a quarter for the whole item.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.elsewhere import Setting, best_of_all
from benchmarks.engine.measured import CACHE
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
GIGABITS = (10.0, 20.0, 100.0)
SERVERS, NICS, SETUP_LATENCY_SECONDS = 4, 2, 50e-6
SHARINGS: tuple[SharingName, ...] = ("job", "guarantee", "strict", "even", "unshaped")
# For all sharings together; a placement on one NIC has its part.
SOLVE_SECONDS = 60.0
# The first step does not count; beside the neighbour there is one more, and two do not count.
STEPS = 3
OUT, BOTH = ("out",), ("out", "in")
ONE_NIC = "one NIC"
# What is also measured with flows into the first server, which hold a step up for minutes.
WITH_FLOWS_IN = ("vgg16 512", 20.0)
ROWS_WITH_FLOWS_IN: tuple[SharingName, ...] = ("job", "unshaped")
# (a row, or `off` for `job` without its send order; how it is run)
Run = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """quiet, busy: the best placement where the job has the NICs to itself, and beside the
    neighbour; busy is None where the placement uses no network."""

    name: str
    quiet: Placed
    busy: Placed | None


@dataclass(frozen=True)
class Case:
    """A model on NICs of one rate."""

    model: str
    gigabits: float

    @property
    def motion(self) -> SlowMotion:
        return SlowMotion(SERVERS, NICS, self.gigabits, SETUP_LATENCY_SECONDS)

    @property
    def has_flows_in(self) -> bool:
        return (self.model, self.gigabits) == WITH_FLOWS_IN

    def __str__(self) -> str:
        return f"{self.model}, {self.gigabits:g} Gbit/s"


def tables(pictures: Path | None) -> Iterable[Table]:
    for model, gigabits in itertools.product(MODELS, GIGABITS):
        yield from case_tables(Case(model, gigabits))


def case_tables(case: Case) -> Iterable[Table]:
    rows = _rows(case)
    jobs = _jobs(case, rows)
    runs = dict(zip(jobs, replayed(list(jobs.values())), strict=True))
    yield _sharings_table(case, rows, runs)
    if case.has_flows_in:
        yield _flows_in_table(case, rows, runs)
    yield _order_table(case, rows[0], runs)


def _rows(case: Case) -> list[Row]:
    """Every sharing, then one NIC unshaped, then one device."""
    motion = case.motion
    slow = [motion.slowed(graph) for graph in motion.variants(case.model)]
    seconds = SOLVE_SECONDS / len(SHARINGS)
    found: dict[tuple[str, bool], Placement] = {}
    for busy in (False, True):
        several = solved(slow, _lab(motion, NICS, busy), "auto", SOLVE_SECONDS)
        alone = solved(slow, _lab(motion, 1, busy), "unshaped", seconds)["unshaped"]
        found |= {(name, busy): several[name].placement for name in SHARINGS}
        found[ONE_NIC, busy] = alone.placement
    settings = {key: Setting(one.cluster, one.sharing) for key, one in found.items()}
    best = best_of_all(slow, found, settings, CACHE / "elsewhere")
    of_structure = {graph.structure_hash: graph for graph in slow}
    placed = {key: Placed(of_structure[one.structure_hash], one) for key, one in best.items()}
    rows = [Row(name, placed[name, False], placed[name, True]) for name in (*SHARINGS, ONE_NIC)]
    problem = Problem(slow[0], motion.lab(), sharing="job")
    single = Placed(slow[0], place(problem, "single", SolveSettings()))
    return [*rows, Row("one device", single, None)]


def _lab(motion: SlowMotion, nics: int, busy: bool) -> Cluster:
    """busy: whether the neighbour wants all of the first server's NICs."""
    quiet = motion.lab(nics)
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


def _jobs(case: Case, rows: list[Row]) -> dict[Run, Replay]:
    """The replays by run; the quiet ones come first."""
    jobs: dict[Run, Replay] = {}
    for row in rows:
        jobs[row.name, "quiet"] = _replay(f"{case}, {row.name}, quiet", row.quiet, STEPS)
    for row in rows:
        if row.busy is not None:
            told, beside = f"{case}, {row.name}, neighbour", (row.busy, STEPS + 1, 2)
            jobs[row.name, "neighbour"] = _replay(told, *beside, OUT)
            if case.has_flows_in and row.name in ROWS_WITH_FLOWS_IN:
                jobs[row.name, "in"] = _replay(f"{told}, in too", *beside, BOTH)
    job, off = rows[0], {"urgent_first": False}
    assert job.name == "job" and job.busy is not None
    told = f"{case}, job without order"
    jobs["off", "quiet"] = _replay(f"{told}, quiet", job.quiet, STEPS, spec=off)
    jobs["off", "neighbour"] = _replay(f"{told}, neighbour", job.busy, STEPS + 1, 2, OUT, off)
    return jobs


def _replay(name: str, placed: Placed, *how: Any, **more: Any) -> Replay:
    return Replay(name, placed.graph, placed.placement, *how, **more)


def _sharings_table(case: Case, rows: list[Row], runs: dict[Run, Replayed]) -> Table:
    shown, motion = [], case.motion
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
        title=f"4. Sharings, replayed: {case}, {SERVERS} servers x {NICS} NICs",
        columns=(
            "sharing", "quiet: predicted, s", "measured, s", "error", "neighbour: predicted, s",
            "measured, s", "error", "it gets: predicted", "measured",
        ),
        rows=shown,
        notes=(
            f"In slow motion, {motion.slower:g} times: divide by it for seconds of the real "
            f"cluster; p0 {SETUP_LATENCY_SECONDS * 1e6:g} us there. Modelled times of {DEVICE}. "
            f"{SOLVE_SECONDS:g} s of search for all sharings, once for quiet NICs and once for a "
            "declared neighbour; then each placement was simulated in each row, quiet and beside "
            "the neighbour, and the shortest was taken.",
            "Neighbour: 8 TCP flows out of the first server on each NIC that the row uses; what it "
            "gets, of the NICs' rate (predicted: of both directions).",
        ),
    )  # fmt: skip


def _flows_in_table(case: Case, rows: list[Row], runs: dict[Run, Replayed]) -> Table:
    shown = []
    for row in rows:
        run = runs.get((row.name, "in"))
        if run is not None and row.busy is not None:
            got = [_got(row.busy.placement, run, way) for way in BOTH]
            shown.append([row.name, *_compared(row.busy.placement, run), *got])
    return Table(
        title=f"4. The same with 8 more flows into the first server: {case}",
        columns=("sharing", "predicted, s", "measured, s", "error", "neighbour out", "in"),
        rows=shown,
        notes=("Nothing shapes what strangers send: their own servers would have to.",),
    )


def _got(placement: Placement, run: Replayed, way: str) -> str:
    return f"{run.neighbour[way] / float(placement.cluster.background.sum()):.0%}"


def _order_table(case: Case, job: Row, runs: dict[Run, Replayed]) -> Table:
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
        title=f"4. Send order of `job`, on against off: {case}",
        columns=("", "predicted, s", "urgent first, s", "as they come, s", "longer by"),
        rows=rows,
    )


def _compared(placement: Placement, run: Replayed) -> list[str]:
    error = run.step_seconds / placement.step_seconds - 1
    return [f"{placement.step_seconds:.3f}", f"{run.step_seconds:.3f}", f"{error:+.1%}"]
