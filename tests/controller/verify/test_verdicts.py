"""Pure verdicts: promised against measured rates, and sums over a run's events."""

from __future__ import annotations

import pytest

from placewire.agent.contract.measurement import LinkMeasurement, TransferResult
from placewire.controller.compile.transfers import promises
from placewire.controller.errors import VerificationFailed
from placewire.controller.plan.plan import Plan
from placewire.controller.records.of_steps import typical_step
from placewire.controller.records.of_traffic import traffic_rows
from placewire.controller.records.report import RunReport, of_placed
from placewire.controller.records.told_steps import believed
from placewire.controller.verify.bandwidth_check import judge, require_delivered
from placewire.job.contract.specification import Finished, RankEvent, StepDone, Traffic
from placewire.optimizer.names import SharingName
from placewire.optimizer.quantities import (
    format_bits_per_second,
    format_bytes,
    parse_bytes,
    parse_seconds,
)
from tests.controller.plans import placement, plan, plan_document
from tests.controller.told import record_of


def _judged(
    measured: float,
    error: str | None = None,
    of: Plan | None = None,
    promised: float = 20e6,
) -> LinkMeasurement:
    of = of or plan()
    transfers = promises(of, placement(of, (("s1", "s3", "b", promised),)))
    result = TransferResult(
        source="s1", destination="s3", rail="b", measured_bits_per_second=measured,
        retransmits=0, seconds=2, error=error, start_unix=1000.0, end_unix=1003.0,
    )  # fmt: skip
    return judge(of, transfers, [result], {"s1": 0.0})[0]


@pytest.mark.parametrize(
    ("sharing", "measured", "kept"),
    [
        # s1 alone sends to s3: it may borrow the whole of s3's 45.9 Mbit/s of payload.
        ("guarantee", 17.9e6, False),
        ("guarantee", 45e6, True),
        ("guarantee", 51e6, False),
        # The job's floor is 80 % of that, 36.7 Mbit/s; the NIC carries 47.8 Mbit/s of payload.
        ("job", 32e6, False),
        ("job", 34e6, True),
        ("job", 47e6, True),
        ("job", 53e6, False),
    ],
)
def test_what_may_borrow_is_held_to_its_promise_and_its_limit(
    sharing: SharingName, measured: float, kept: bool
) -> None:
    of = plan()
    promised = promises(of, placement(of, (("s1", "s3", "b", 20e6),), sharing))
    results = [
        TransferResult(
            source=p.transfer.source, destination=p.transfer.destination, rail=p.transfer.rail,
            measured_bits_per_second=measured, retransmits=0, seconds=2, start_unix=1000.0,
            end_unix=1003.0,
        )
        for p in promised
    ]  # fmt: skip
    links = judge(of, promised, results, dict.fromkeys(("s1", "s2", "s3"), 0.0))
    # Under `job` s1 and s3 share the floor of s2, the only server that they talk to.
    alone = [link for link in links if sharing != "job" or link.source == "s2"]
    assert alone and all(link.within_tolerance is kept for link in alone)


@pytest.mark.parametrize(
    ("measured", "kept"), [(20e6, True), (18.1e6, True), (17.9e6, False), (22.1e6, False)]
)
def test_a_rate_is_kept_within_the_tolerance_both_ways(measured: float, kept: bool) -> None:
    assert _judged(measured).within_tolerance is kept


@pytest.mark.parametrize(
    ("promised", "mtu_bytes", "measured", "kept"),
    [
        # In the two seconds measured, a large frame is 35.8 kbit/s.
        (0.5e6, 9000, 0.5e6 * 0.9 - 70e3, True),
        (0.5e6, 9000, 0.5e6 * 0.9 - 75e3, False),
        (0.5e6, 1500, 0.5e6 * 0.9 - 15e3, False),
        (20e3, 9000, 0.0, False),
    ],
)
def test_a_slow_queue_may_miss_a_frame_at_each_end(
    promised: float, mtu_bytes: int, measured: float, kept: bool
) -> None:
    document = plan_document()
    for server in document["cluster"]["servers"]:
        server["nics"][1]["mtu"] = mtu_bytes
    assert _judged(measured, of=plan(document), promised=promised).within_tolerance is kept


def test_a_failed_measurement_keeps_nothing() -> None:
    assert not _judged(20e6, error="connection refused").within_tolerance


def of_64_servers(measured: float, seconds: float = 3.0) -> tuple[LinkMeasurement, ...]:
    """All pairs, on both rails; one is measured as given."""
    of = plan(plan_document(64, rate="100Gbit"))
    names = [server.name for server in of.cluster.servers]
    rates = tuple((s, d, rail, 1e9) for s in names for d in names if s != d for rail in "ab")
    promised = promises(of, placement(of, rates))
    results = [
        TransferResult(
            source=t.source, destination=t.destination, rail=t.rail, retransmits=0, seconds=2,
            measured_bits_per_second=measured
            if (t.source, t.destination, t.rail) == ("s7", "s9", "b")
            else 1e9,
            start_unix=1000.0, end_unix=1000.0 + seconds,
        )
        for t in (one.transfer for one in promised)
    ]  # fmt: skip
    return judge(of, promised, results, dict.fromkeys(names, 0.0))


def test_of_many_broken_promises_the_worst_is_named_and_json_has_all() -> None:
    links = of_64_servers(0.5e9, seconds=0.5)
    with pytest.raises(VerificationFailed) as caught:
        require_delivered(links, now="nothing was changed")
    error = caught.value
    assert error.where.startswith("s7 nic1 queue ") and error.where.endswith(" to s9")
    assert error.what == (
        "8064 of 8064 promised rates were not delivered; the worst got 500.0 of 1000.0 Mbit/s "
        "(all transfers ran together for 0.5 of 2 s only)"
    )
    assert error.remedy.startswith("nothing was changed; what could not be measured")
    assert len(str(error)) < 500
    assert len(error.document()["links"]) == 8064


def test_a_rate_that_others_take_is_answered_with_where_to_look() -> None:
    with pytest.raises(VerificationFailed) as caught:
        require_delivered(of_64_servers(0.5e9))
    assert caught.value.what.startswith("1 of 8064 promised rates were not delivered")
    assert caught.value.remedy == (
        "every server was put back on its former state; look for other traffic on that NIC, or "
        "raise network.verify.tolerance"
    )


def test_a_missing_measurement_keeps_nothing() -> None:
    of = plan()
    transfers = promises(of, placement(of, (("s1", "s3", "b", 20e6),)))
    assert [m.error for m in judge(of, transfers, [], {})] == ["no result came back"]


@pytest.mark.parametrize(("ahead", "kept"), [(5.0, True), (0.0, False)])
def test_rates_count_only_where_they_were_measured_together(ahead: float, kept: bool) -> None:
    of = plan()
    transfers = promises(of, placement(of, (("s1", "s3", "b", 20e6), ("s2", "s3", "b", 20e6))))
    # s2's transfer began 5 s later by its own clock: together only if that clock is 5 s ahead.
    results = [
        TransferResult(
            source=source,
            destination="s3",
            rail="b",
            measured_bits_per_second=20e6,
            retransmits=0,
            seconds=2,
            start_unix=start,
            end_unix=start + 3,
        )
        for source, start in (("s1", 1000.0), ("s2", 1005.0))
    ]
    links = judge(of, transfers, results, {"s1": 0.0, "s2": ahead})
    assert [link.within_tolerance for link in links] == [kept, kept]


def test_the_verdict_names_server_nic_and_queue() -> None:
    with pytest.raises(VerificationFailed) as raised:
        require_delivered((_judged(20e6), _judged(5e6)))
    assert raised.value.exit_code == 6
    assert "s1 nic1 queue 4 to s3" in str(raised.value)
    assert "5.0 of 20.0 Mbit/s" in str(raised.value)


def test_step_times_that_cannot_be_are_not_used_and_named() -> None:
    devices = ("s1/0", "s1/1", "s2/0")
    events = [
        StepDone(rank=rank, step=step, seconds=seconds)
        for rank, seconds in ((0, 4.0), (1, 1e11), (2, 0.0))
        for step in (0, 1)
    ]
    told = record_of(3, events).steps.told_times()
    good, notes = believed(told, devices, job_seconds=9.0)
    assert good == (0,)
    assert (
        "rank 1 (s1/1) told are not used: they add up to 2e+11 s, and the job ran for 9 s"
        in (notes[0])
    )
    assert "rank 2 (s2/0)" in notes[1] and "2 of 2 steps took no time" in notes[1]
    assert believed(record_of(3, events[:4]).steps.told_times(), devices, None) == ((0, 1), ())
    assert believed(record_of(3, events[:2]).steps.told_times(), devices, 7.5) == ((0,), ())


def test_steps_whose_times_cannot_be_are_steps_all_the_same() -> None:
    made = placement(plan(), ())
    ranks = range(len(made.devices_used))
    events: list[RankEvent] = [
        *(StepDone(rank=rank, step=step, seconds=0, loss=2.5) for rank in ranks for step in (0, 1)),
        *(Finished(rank=rank, traffic=(), peak_memory_bytes=1) for rank in ranks),
    ]
    blank = RunReport(
        plan_name="small", plan_digest="d", generations={}, changes={}, sharing="strict",
        links=(), network="restored", stage_seconds={"job": 9.0}, files={},
    )  # fmt: skip
    report = of_placed(blank, made, (), {}, record_of(len(ranks), events))
    assert (report.steps_run, report.losses, report.step_seconds) == (2, (2.5, 2.5), ())
    assert report.measured_step_seconds is None and len(report.notes) == len(ranks)
    assert report.traffic, "what a step sent needs no time"


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    steps = record_of(2, [
        StepDone(rank=0, step=0, seconds=3.0, loss=2.5),
        StepDone(rank=1, step=0, seconds=4.0),
        StepDone(rank=1, step=1, seconds=1.0),
        StepDone(rank=0, step=1, seconds=2.0, loss=2.25),
    ]).steps  # fmt: skip
    done = steps.done(0)
    assert steps.seconds(done, (0, 1)) == steps.longest(done, (0, 1)) == (4.0, 2.0)
    assert steps.seconds(done, (1,)) == (4.0, 1.0), "of rank 0 no time is believed"
    assert steps.seconds(done, ()) == ()
    assert steps.losses(done) == (2.5, 2.25)
    assert typical_step((9.0, 2.0, 3.0, 2.5)) == 2.5
    assert typical_step(()) is None


def test_only_steps_that_every_rank_ended_are_steps() -> None:
    """Rank 1 failed in step 6; a step after it, and one before the run began, are none of it."""
    steps = record_of(2, [
        *(StepDone(rank=rank, step=step, seconds=1.0) for step in (4, 5) for rank in (0, 1)),
        StepDone(rank=0, step=6, seconds=30.0),
        StepDone(rank=0, step=6, seconds=30.0),
        *(StepDone(rank=rank, step=step, seconds=9.0) for step in (2, 8) for rank in (0, 1)),
    ]).steps  # fmt: skip
    assert steps.done(4) == range(4, 6)
    assert steps.seconds(steps.done(4), (0, 1)) == (1.0, 1.0)
    assert steps.done(20) == range(20, 20), "no step was run"
    assert record_of(2, []).steps.done(0) == range(0)


def test_a_loss_that_is_not_finite_keeps_its_place() -> None:
    events = [
        StepDone(rank=0, step=step, seconds=1.0, loss=loss)
        for step, loss in enumerate((2.5, None, 2.0, None))
    ]
    assert record_of(1, events).steps.losses(range(4)) == (2.5, None, 2.0, None)
    assert record_of(1, events[1:2]).steps.losses(range(1, 2)) == ()
    odd = events[1].model_copy(update={"non_finite_loss": "nan"})
    assert record_of(1, [odd]).steps.losses(range(1, 2)) == (None,)


def test_metrics_are_listed_by_name_for_each_step() -> None:
    """Two ranks tell; what was not finite in a step keeps its place."""
    steps = record_of(2, [
        StepDone(rank=0, step=3, seconds=1.0, metrics={"accuracy": 0.5}),
        StepDone(rank=1, step=3, seconds=1.0, metrics={"tokens": 7.0}),
        StepDone(rank=1, step=4, seconds=1.0, metrics={"tokens": 9.0}),
        StepDone(rank=1, step=5, seconds=1.0, metrics={"tokens": 8.0}),
    ]).steps  # fmt: skip
    assert steps.metrics(range(3, 5)) == {"accuracy": (0.5, None), "tokens": (7.0, 9.0)}


def test_traffic_is_planned_against_sent_per_rail() -> None:
    of = placement(plan(), ())
    sent = (Traffic(destination="s2/0", rail="a", bytes=1_500_000),)
    rows = traffic_rows(of, [Finished(rank=0, traffic=sent, peak_memory_bytes=1)], steps=2)
    first = {(r.source, r.destination, r.rail): r for r in rows}
    assert first["s1/0", "s2/0", "a"].planned_bytes == first["s1/0", "s2/0", "a"].sent_bytes
    assert (first["s1/0", "s2/0", "b"].planned_bytes, first["s1/0", "s2/0", "b"].sent_bytes) == (
        250_000, 0,
    )  # fmt: skip


def test_quantities_read_and_print() -> None:
    assert parse_seconds("50µs") == parse_seconds("50us") == pytest.approx(5e-5)
    assert parse_bytes("1.5 KiB") == 1536
    assert format_bits_per_second(16_250_000) == "16.2 Mbit/s"
    assert format_bytes(3 * 2**20) == "3.0 MiB"
