"""The steps of a job take bounded memory, and the report's figures are those of all of them."""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Iterator
from copy import copy
from itertools import pairwise
from typing import Any, cast

import pytest

from placewire.controller.metrics.run_facts import RunFacts, StepFacts
from placewire.controller.metrics.run_state import RunState
from placewire.controller.records import joined_steps
from placewire.controller.records.job_record import MOST_VALIDATIONS, JobRecord
from placewire.controller.records.joined_steps import Steps
from placewire.controller.records.report import of_placed
from placewire.controller.records.step_record import MOST_METRICS, StepRecord
from placewire.controller.verify.nic_use import NicWatch
from placewire.job.contract.specification import Finished, Saved, StepDone, Validated
from tests.controller.page.reports import a_report
from tests.controller.plans import placement, plan, plan_document

BUCKETS = ("long", "short")
BLANK = StepDone(rank=0, step=0, seconds=0.0)


def seconds_of(rank: int, step: int) -> float:
    return 0.2 + (step * 7919 + rank * 104_729) % 1009 / 1e4


def load_of(rank: int, step: int) -> float:
    return ((step + 3 * rank) % 8) / 8


def loss_of(step: int) -> float | None:
    return None if step % 97 == 13 else 1.0 / (step + 1)


def bucket_of(step: int) -> str:
    return "long" if step % 5 == 0 else "short"


def step_done(rank: int, step: int) -> StepDone:
    """Rank 0 computes the loss, rank 1 a metric."""
    made = copy(BLANK)  # To validate each would take most of a test's time.
    made.__dict__.update(
        rank=rank, step=step, seconds=seconds_of(rank, step), bucket=bucket_of(step),
        load_seconds=load_of(rank, step),
        loss=None if rank else loss_of(step), metrics={"accuracy": step / 1e6} if rank == 1 else {},
    )  # fmt: skip
    return made


def told(ranks: int, steps: int, first: int = 0) -> Iterator[StepDone]:
    for step in range(first, first + steps):
        yield from (step_done(rank, step) for rank in range(ranks))


def slowest(ranks: int, steps: int) -> list[float]:
    return [max(seconds_of(rank, step) for rank in range(ranks)) for step in range(steps)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "most_mib"), [(20_000, 6), pytest.param(200_000, 32, marks=pytest.mark.thorough)]
)
def test_many_steps_take_little_memory_and_the_report_is_as_if_all_were_kept(
    steps: int, most_mib: int
) -> None:
    """All that the controller tells of each event, but the terminal and the log's file. The events
    of 20,000 steps of four ranks would be 80 MiB."""
    of = placement(plan(plan_document(4)), ())
    ranks = len(of.devices_used)
    assert ranks == 4
    facts = RunFacts(
        plan="small", run="1", kind="placed", sharing="job", devices=of.devices_used,
        memory_bytes=(1,) * ranks, started_unix=0.0, steps=steps, samples=1,
        predicted_step_seconds=0.2, by_bucket={name: StepFacts(0.2, {}) for name in BUCKETS},
    )  # fmt: skip
    tracemalloc.start()
    try:
        record, joined, run = JobRecord(), Steps(ranks), RunState()
        nics = NicWatch(cast(Any, None), plan(plan_document(4)))
        record.begin(ranks, BUCKETS)
        run.begin(facts, dict)
        for event in told(ranks, steps):
            if (step := joined.ended(event)) is not None:
                nics.step_ended(step.number)
            record.add(event)
            run.event(event, now_unix=1.0)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < most_mib * 2**20
    for rank in range(ranks):
        record.add(Finished(rank=rank, traffic=(), peak_memory_bytes=1))
    both = dict.fromkeys(BUCKETS, of)
    blank = a_report(stage_seconds={"job": 1e9})
    report = of_placed(blank, of, (), {}, record, both, {"long": 0.2, "short": 0.8})
    expected = slowest(ranks, steps)
    assert (report.steps, report.steps_each, report.first_step) == (steps, 1, 0)
    assert report.step_seconds == tuple(expected)
    assert report.losses == tuple(map(loss_of, range(steps)))
    assert report.metrics == {"accuracy": tuple(step / 1e6 for step in range(steps))}
    for row in report.buckets:
        own = [took for step, took in enumerate(expected) if bucket_of(step) == row.name]
        assert (row.steps, row.measured_step_seconds) == (len(own), statistics.median(own[1:]))
    alone = of_placed(blank, of, (), {}, record)
    assert alone.measured_step_seconds == statistics.median(expected[1:])
    assert run.steps == steps and run.step_seconds == pytest.approx(sum(expected))
    assert len(nics._step_ends) == steps


@pytest.mark.parametrize("steps", [1_000, 1_001, 40_000])
def test_where_there_is_no_room_steps_are_grouped(steps: int) -> None:
    ranks = 3
    record = StepRecord(ranks, BUCKETS, most_numbers=12_000)
    for event in told(ranks, steps, first=7):
        record.add(event)
    done = record.done(7)
    assert done == range(7, 7 + steps)
    each, every = record.steps_each, range(ranks)
    assert each == {1_000: 1, 1_001: 2, 40_000: 64}[steps]
    expected = [max(seconds_of(rank, step) for rank in every) for step in done]
    groups = [expected[k : k + each] for k in range(0, steps, each)]
    assert len(groups) <= 1_000
    assert record.longest(done, every) == tuple(map(max, groups)), "no peak is lost"
    assert record.seconds(done, every) == tuple(group[0] for group in groups)
    for rank, loads in record.load_seconds(done, every).items():
        of_groups = [done[k : k + each] for k in range(0, steps, each)]
        assert loads == tuple(
            sum(load_of(rank, step) for step in group) / len(group) for group in of_groups
        )
        assert record.told_times()[rank].load_seconds == sum(load_of(rank, step) for step in done)
    assert record.losses(done) == tuple(loss_of(step) for step in done[::each])
    assert record.metrics(done) == {"accuracy": tuple(step / 1e6 for step in done[::each])}
    assert record.buckets(done) == tuple(map(bucket_of, done[::each]))
    assert record.steps_of(done) == {
        name: sum(bucket_of(step) == name for step in done) for name in BUCKETS
    }
    of_all = statistics.median(expected)
    assert statistics.median(record.seconds(done, every)) == pytest.approx(of_all, rel=0.05)
    held = [
        len(one)
        for rank in record._ranks
        for one in (rank.seconds, rank.longest, rank.load_seconds)
    ]
    assert sum(held) <= 12_000


def test_a_rank_that_is_ahead_when_another_fails_makes_no_step() -> None:
    record = StepRecord(2, BUCKETS, most_numbers=600)
    for event in told(2, 999):
        record.add(event)
    record.add(step_done(0, 999))
    done = record.done(0)
    assert len(done) == 999 and record.steps_of(done).total() == 999
    assert len(record.seconds(done, (0, 1))) == len(record.buckets(done))
    loads = record.load_seconds(done, (0, 1)).values()
    assert {len(of_rank) for of_rank in loads} == {len(record.buckets(done))}
    assert record.steps_of(record.done(5)) == {}


def test_names_of_metrics_that_a_model_makes_up_take_no_room() -> None:
    record = StepRecord(1)
    for step in range(1_000):
        record.add(StepDone(rank=0, step=step, seconds=1.0, metrics={f"m{step}": 1.0}))
    assert [*record.metrics(record.done(0))] == [f"m{k}" for k in range(MOST_METRICS)]


def test_a_joined_step_has_the_longest_reading_and_a_loss_that_is_not_finite() -> None:
    steps, record = Steps(ranks=3), StepRecord(3)
    step = None
    for rank, (load, told_loss) in enumerate(((0.25, None), (0.75, "-inf"), (0.5, "-inf"))):
        event = StepDone(
            rank=rank, step=0, seconds=1.0, load_seconds=load, non_finite_loss=cast(Any, told_loss)
        )
        step = steps.ended(event)
        record.add(event)
    assert step is not None
    assert (step.load_seconds, step.loss) == (0.75, float("-inf"))
    assert record.losses(record.done(0)) == (None,)


def test_of_a_rank_that_tells_no_steps_those_of_others_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joined_steps, "MOST_UNDER_WAY", 50)
    steps = Steps(ranks=2)
    for number in range(1_000):
        assert steps.ended(step_done(0, number)) is None
    assert len(steps._under_way) == 50
    late = steps.ended(step_done(1, 990))
    assert late is not None and late.number == 990, "what is not too late is joined"


def test_many_validations_are_thinned_and_the_last_is_there() -> None:
    record, count = JobRecord(), 5 * MOST_VALIDATIONS + 3
    for step in range(1, count + 1):
        for batches in (1, 2):
            record.add(Validated(rank=0, step=step, batches=batches, seconds=1.0, loss=1 / step))
        if step % 501 == 0:
            assert len(record.validations) <= MOST_VALIDATIONS
            assert record.validations[-1].step == step
    *rows, last = record.validations
    assert {one.batches for one in rows} == {2} and last.step == count
    apart = {after.step - before.step for before, after in pairwise(rows)}
    assert apart == {8} and rows[0].step == 1


def test_of_checkpoints_the_last_is_kept() -> None:
    record = JobRecord()
    for step in (5, 10):
        record.add(Saved(rank=0, step=step, path=f"/kept/{step}", bytes=1, seconds=1.0))
    assert record.saved is not None and record.saved.path == "/kept/10"
