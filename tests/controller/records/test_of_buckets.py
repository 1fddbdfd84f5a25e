"""The report of a job whose batches have several shapes: each bucket, and the means over them."""

from __future__ import annotations

import pytest

from placewire.controller.records.job_record import JobRecord
from placewire.controller.records.of_buckets import bucket_rows, weighted, weights
from placewire.controller.records.report import RunReport, of_placed
from placewire.job.contract.specification import Finished, RankEvent, StepDone, Traffic
from placewire.optimizer.placement import Placement
from tests.controller.plans import placement, plan
from tests.controller.told import record_of

BLANK = RunReport(
    plan_name="small", plan_digest="d", generations={}, changes={}, sharing="strict",
    links=(), network="restored", stage_seconds={"job": 90.0}, files={},
)  # fmt: skip
TURNS = ("long", "short", "long", "short", "short")
SECONDS = (9.0, 1.0, 4.0, 2.0, 3.0)


def placed() -> dict[str, Placement]:
    """The short one's step and messages are half of the long one's."""
    long = placement(plan(), ()).model_copy(
        update={"step_seconds": 4.0, "bound_seconds": 3.0, "single_device_seconds": 8.0}
    )
    halved = tuple(m.model_copy(update={"bytes": m.bytes // 2}) for m in long.messages)
    short = long.model_copy(
        update={
            "step_seconds": 2.0, "bound_seconds": 1.0, "single_device_seconds": None,
            "messages": halved,
        }
    )  # fmt: skip
    return {"long": long, "short": short}


def steps_of(rank: int) -> list[RankEvent]:
    return [
        StepDone(rank=rank, step=step, seconds=seconds, bucket=bucket)
        for step, (bucket, seconds) in enumerate(zip(TURNS, SECONDS, strict=True))
    ]


def test_each_bucket_has_its_steps_and_their_median_without_its_own_first() -> None:
    told = record_of(1, steps_of(0), ("long", "short")).steps
    long, short = bucket_rows(placed(), {"long": 0.5, "short": 0.5}, told, range(5), SECONDS)
    assert (long.steps, long.measured_step_seconds) == (2, 4.0)
    assert (short.steps, short.measured_step_seconds) == (3, 2.5)
    assert (long.predicted_step_seconds, long.bound_seconds, long.share) == (4.0, 3.0, 0.5)
    assert weights((long, short)) == {"long": 0.4, "short": 0.6}
    (alone, none) = bucket_rows(placed(), {"long": 0.5, "short": 0.5}, told, range(1), SECONDS[:1])
    assert (alone.steps, alone.measured_step_seconds) == (1, 9.0)
    assert (none.steps, none.measured_step_seconds) == (0, None)


def test_the_report_has_means_by_how_often_each_bucket_came() -> None:
    both = placed()
    long, ranks = both["long"], range(len(both["long"].devices_used))
    planned: dict[tuple[int, str, str], int] = {}
    for name in TURNS:
        for message in both[name].messages:
            for rail, share in message.rails.items():
                key = long.devices_used.index(message.source), message.destination, rail
                planned[key] = planned.get(key, 0) + round(message.bytes * share)
    events: list[RankEvent] = [event for rank in ranks for event in steps_of(rank)]
    for rank in ranks:
        sent = tuple(
            Traffic(destination=to, rail=rail, bytes=count)
            for (source, to, rail), count in planned.items()
            if source == rank
        )
        events.append(Finished(rank=rank, traffic=sent, peak_memory_bytes=1))
    told = record_of(len(ranks), events, [*both])
    report = of_placed(BLANK, long, (long,), {}, told, both, {"long": 0.9, "short": 0.1})
    assert report.predicted_step_seconds == pytest.approx(0.4 * 4 + 0.6 * 2)
    assert report.bound_seconds == pytest.approx(0.4 * 3 + 0.6 * 1)
    assert report.measured_step_seconds == pytest.approx(0.4 * 4 + 0.6 * 2.5)
    assert report.prediction_error == pytest.approx(0.3 / 2.8)
    assert report.single_device_seconds is None, "no device can hold the short one"
    assert report.traffic
    for row in report.traffic:
        assert row.sent_bytes == pytest.approx(row.planned_bytes)


def test_without_a_step_the_means_are_those_that_were_expected() -> None:
    both = placed()
    report = of_placed(
        BLANK, both["long"], (), {}, JobRecord(), both, {"long": 0.25, "short": 0.75}
    )
    assert report.predicted_step_seconds == pytest.approx(0.25 * 4 + 0.75 * 2)
    assert report.measured_step_seconds is None
    assert weighted(report.buckets, "measured_step_seconds") is None


def test_what_a_rank_says_of_buckets_is_not_believed_blindly() -> None:
    lied = [StepDone(rank=0, step=0, seconds=1.0, bucket="another")]
    told = record_of(1, lied, ("long", "short")).steps
    rows = bucket_rows(placed(), {"long": 0.5, "short": 0.5}, told, range(1), (1.0,))
    assert [row.steps for row in rows] == [0, 0]


def test_a_job_without_buckets_has_none() -> None:
    long = placed()["long"]
    told = record_of(1, [StepDone(rank=0, step=0, seconds=1.0)])
    assert bucket_rows({}, {}, told.steps, range(1), (1.0,)) == ()
    assert of_placed(BLANK, long, (), {}, told).buckets == ()
