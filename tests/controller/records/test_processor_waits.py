"""Does the report say that ranks waited for a processor, where a step took too long?"""

from __future__ import annotations

from placewire.controller.records.processor_waits import about_waits
from placewire.controller.records.report import of_placed
from placewire.job.contract.specification import Finished, RankEvent, StepDone
from tests.controller.page.reports import a_report
from tests.controller.plans import placement, plan
from tests.controller.told import record_of


def test_the_last_that_a_rank_told_counts() -> None:
    events: list[RankEvent] = [
        StepDone(rank=0, step=0, seconds=1),
        StepDone(rank=0, step=1, seconds=1, processor_wait=0.5),
        StepDone(rank=1, step=1, seconds=1, processor_wait=0.25),
        StepDone(rank=0, step=2, seconds=1),
        Finished(rank=0, traffic=(), peak_memory_bytes=1, processor_wait=0.125),
    ]
    assert record_of(2, events).processor_waits == {0: 0.125, 1: 0.25}


def test_waits_are_told_of_where_the_step_took_longer_than_predicted() -> None:
    waits = {"s1/0": 0.02, "s2/0": 0.11, "s2/1": 0.31, "s3/0": 0.08}
    (told,) = about_waits(waits, 0.4)
    assert told.startswith("the step took 40% longer than predicted, and ranks of s2, s3 waited 8%")
    assert " to 31% of the time for a processor" in told
    (one,) = about_waits({"s2/0": 0.31}, 0.4)
    assert "ranks of s2 waited 31% of the time" in one
    assert "other programs, other ranks, or the threads of one (job.threads)" in one
    assert about_waits(waits, 0.02) == about_waits(waits, None) == ()
    assert about_waits({"s1/0": 0.02}, 0.4) == ()


def test_a_report_has_them() -> None:
    made = placement(plan(), ())
    ranks = range(len(made.devices_used))
    slow = made.step_seconds * 2
    events: list[RankEvent] = [
        *(StepDone(rank=rank, step=step, seconds=slow) for rank in ranks for step in range(3)),
        *(
            Finished(rank=rank, traffic=(), peak_memory_bytes=1, processor_wait=0.5)
            for rank in ranks
        ),
    ]
    report = of_placed(a_report(), made, (), {}, record_of(len(ranks), events))
    assert report.processor_waits == dict.fromkeys(made.devices_used, 0.5)
    assert "waited 50% of the time for a processor" in report.notes[-1]
