"""Item 4: every sharing of the network, each with its own best placement, replayed in a lab.

The lab is a cluster of GPU servers in slow motion: its NICs stand for fast ones, and one factor
slows operators and p0 alike. Each row is measured quiet, and beside a neighbour that is not part of
the job: eight greedy flows from the first server on each of its NICs. For some rows eight more flow
to that server, which no queue of the job's servers holds back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.measured import Ask, Result, solve
from benchmarks.engine.setting import DEVICE, captured_file, layered_file
from benchmarks.engine.sharings import neighbour_share
from benchmarks.job.replays import Replay, Replayed, kept_graph, lab_cluster, replayed
from benchmarks.table import Table
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement
from placewire.optimizer.profile.scale import with_scaled_seconds

SERVERS, NICS = 4, 2
# The NICs for which the lab's stand, and what a message costs there.
GIGABITS, SETUP_LATENCY_SECONDS = 10.0, 50e-6
SHARINGS: tuple[SharingName, ...] = ("job", "guarantee", "strict", "even", "unshaped")
SOLVE_SECONDS = 5.0
# The first step does not count; beside the neighbour there is one more, and two do not count.
STEPS = 3
OUT, BOTH = ("out",), ("out", "in")
# The rows that are also measured with flows into the first server.
WITH_FLOWS_IN: tuple[SharingName, ...] = ("job", "unshaped")
# (a row, or `off` for `job` without its send order; how it is run)
Run = tuple[str, str]


@dataclass(frozen=True)
class Variant:
    """A row. quiet, busy: its best placement where the job has the NICs to itself, and beside the
    neighbour; busy is None where the placement uses no network."""

    name: str
    quiet: Placement
    busy: Placement | None


def tables(pictures: Path | None) -> Iterable[Table]:
    yield from graph_tables("layered", layered_file(1500))
    yield from graph_tables("BERT, batch 4", captured_file("bert_batch_4"))


def graph_tables(name: str, file: Path) -> tuple[Table, ...]:
    rate = lab_cluster(1, 1, 0.0, DEVICE).nic_rates[0, 0]
    scale = GIGABITS * 1e9 / float(rate)
    slow = with_scaled_seconds(load_graph(file), scale)
    variants = _variants(kept_graph(slow), scale)
    jobs = _jobs(name, slow, variants)
    runs = dict(zip(jobs, replayed(list(jobs.values())), strict=True))
    return (
        _sharings_table(name, slow, scale, variants, runs),
        _flows_in_table(name, variants, runs),
        _order_table(name, variants[0], runs),
    )


def _variants(file: Path, scale: float) -> list[Variant]:
    """Every sharing, then one NIC unshaped, then one device."""

    def solved(nics: int, busy: bool, sharing: str, seconds: float) -> Result:
        return solve(Ask(file, _cluster(scale, nics, busy), "auto", sharing, time_limit=seconds))

    quiet, busy = (solved(NICS, b, "auto", SOLVE_SECONDS * len(SHARINGS)) for b in (False, True))
    found = [Variant(s, quiet.placement_under(s), busy.placement_under(s)) for s in SHARINGS]
    one = [solved(1, b, "unshaped", SOLVE_SECONDS).placement for b in (False, True)]
    single = solve(Ask(file, _cluster(scale, NICS, False), "single", "strict")).placement
    return [*found, Variant("one NIC", *one), Variant("one device", single, None)]


def _cluster(scale: float, nics: int, busy: bool) -> Cluster:
    """busy: whether the neighbour wants all of the first server's NICs."""
    quiet = lab_cluster(SERVERS, nics, SETUP_LATENCY_SECONDS * scale, DEVICE)
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


def _jobs(name: str, graph: OperatorGraph, variants: list[Variant]) -> dict[Run, Replay]:
    """The replays by run; the quiet ones come first."""
    jobs: dict[Run, Replay] = {}
    for v in variants:
        jobs[v.name, "quiet"] = Replay(f"{name}, {v.name}, quiet", graph, v.quiet, STEPS)
    for v in variants:
        if v.busy is not None:
            told = f"{name}, {v.name}, neighbour"
            jobs[v.name, "neighbour"] = Replay(told, graph, v.busy, STEPS + 1, 2, OUT)
            if v.name in WITH_FLOWS_IN:
                jobs[v.name, "in"] = Replay(f"{told}, in too", graph, v.busy, STEPS + 1, 2, BOTH)
    job, off = variants[0], {"urgent_first": False}
    assert job.name == "job" and job.busy is not None
    told = f"{name}, job without order"
    jobs["off", "quiet"] = Replay(f"{told}, quiet", graph, job.quiet, STEPS, spec=off)
    jobs["off", "neighbour"] = Replay(f"{told}, neighbour", graph, job.busy, STEPS + 1, 2, OUT, off)
    return jobs


def _sharings_table(
    name: str,
    graph: OperatorGraph,
    scale: float,
    variants: list[Variant],
    runs: dict[Run, Replayed],
) -> Table:
    rows = []
    for variant in variants:
        row = [variant.name, *_compared(variant.quiet, runs[variant.name, "quiet"])]
        if variant.busy is None:
            rows.append([*row, *[""] * 5])
            continue
        run = runs[variant.name, "neighbour"]
        predicted = neighbour_share(graph, variant.busy)
        got = _got(variant.busy, run, "out")
        rows.append([*row, *_compared(variant.busy, run), f"{predicted:.0%}", got])
    return Table(
        title=f"4. Sharings, replayed: {name}, {graph.operator_count} operators, "
        f"{SERVERS} servers x {NICS} NICs",
        columns=(
            "sharing", "quiet: predicted, s", "measured, s", "error", "neighbour: predicted, s",
            "measured, s", "error", "it gets: predicted", "measured",
        ),
        rows=rows,
        notes=(
            f"NICs of {GIGABITS:g} Gbit/s in slow motion, {scale:.0f} times: divide by it for "
            f"seconds of the real cluster; p0 {SETUP_LATENCY_SECONDS * 1e6:g} us there. Modelled "
            f"times of {DEVICE}. Each row has its own placements, found in {SOLVE_SECONDS:g} s, "
            "one for quiet NICs and one for a declared neighbour.",
            "Neighbour: 8 TCP flows out of the first server on each NIC that the row uses; what it "
            "gets, of the NICs' rate (predicted: of both directions).",
        ),
    )  # fmt: skip


def _flows_in_table(name: str, variants: list[Variant], runs: dict[Run, Replayed]) -> Table:
    rows = []
    for variant in variants:
        run = runs.get((variant.name, "in"))
        if run is not None and variant.busy is not None:
            got = [_got(variant.busy, run, way) for way in BOTH]
            rows.append([variant.name, *_compared(variant.busy, run), *got])
    return Table(
        title=f"4. The same with 8 more flows into the first server: {name}",
        columns=("sharing", "predicted, s", "measured, s", "error", "neighbour out", "in"),
        rows=rows,
        notes=("Nothing shapes what strangers send: their own servers would have to.",),
    )


def _got(placement: Placement, run: Replayed, way: str) -> str:
    return f"{run.neighbour[way] / float(placement.cluster.background.sum()):.0%}"


def _order_table(name: str, job: Variant, runs: dict[Run, Replayed]) -> Table:
    assert job.busy is not None
    rows = []
    for how, placement in (("quiet", job.quiet), ("neighbour", job.busy)):
        on, off = runs["job", how], runs["off", how]
        longer = off.step_seconds / on.step_seconds - 1
        rows.append([
            how, f"{placement.step_seconds:.3f}", f"{on.step_seconds:.3f}",
            f"{off.step_seconds:.3f}", f"{longer:+.1%}",
        ])  # fmt: skip
    return Table(
        title=f"4. Send order of `job`, on against off: {name}",
        columns=("", "predicted, s", "urgent first, s", "as they come, s", "longer by"),
        rows=rows,
    )


def _compared(placement: Placement, run: Replayed) -> list[str]:
    error = run.step_seconds / placement.step_seconds - 1
    return [f"{placement.step_seconds:.3f}", f"{run.step_seconds:.3f}", f"{error:+.1%}"]
