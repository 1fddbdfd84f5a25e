"""Does the report say that the reading of batches took long beside the steps?"""

from __future__ import annotations

from collections.abc import Mapping

from placewire.controller.metrics.run_facts import RunFacts, StepFacts
from placewire.controller.metrics.run_state import RunState
from placewire.controller.records.batch_reading import about_batches
from placewire.controller.records.report import of_placed
from placewire.controller.records.told_steps import believed
from placewire.job.contract.specification import StepDone
from tests.controller.page.reports import a_report
from tests.controller.plans import placement, plan
from tests.controller.told import record_of

DEVICES = ("s1/0", "s2/0")


def steps(loads: Mapping[int, tuple[float, ...]], seconds: float = 1.0) -> list[StepDone]:
    """loads: by rank, of each step."""
    return [
        StepDone(rank=rank, step=step, seconds=seconds, load_seconds=load)
        for rank, some in loads.items()
        for step, load in enumerate(some)
    ]


def told(loads: dict[int, tuple[float, ...]]) -> tuple[str, ...]:
    record = record_of(len(loads), steps(loads)).steps
    done = record.done(0)
    return about_batches(record.load_seconds(done, tuple(loads)), (1.0,) * len(done), DEVICES)


def test_the_rank_that_reads_longest_is_named() -> None:
    (one,) = told({0: (9.0, 0.01, 0.02), 1: (0.0, 0.1, 0.2)})
    assert one.startswith("a step waits 0.15 s for batches(step), and takes 1 s beside that: no")
    assert one.endswith("Rank 1 (s2/0) reads longest, 0.15 s")
    (alone,) = told({0: (0.5,), 1: (0.0,)})
    assert "a step waits 0.5 s" in alone and "Rank 0 (s1/0) reads longest" in alone


def test_a_short_reading_and_that_before_the_first_step_are_not_told() -> None:
    assert told({0: (9.0, 0.04, 0.04), 1: (9.0, 0.05, 0.05)}) == ()
    assert told({0: (9.0, 0.06, 0.06), 1: (0.0, 0.0, 0.0)}) != ()
    assert about_batches({}, (), DEVICES) == about_batches({0: ()}, (), DEVICES) == ()


def test_ranks_that_read_long_in_turn_are_told_of_together() -> None:
    """Each step waits for the slowest."""
    (one,) = told({0: (0.0, 0.06, 0.0), 1: (0.0, 0.0, 0.06)})
    assert "waits 0.06 s" in one and "longest, 0.03 s" in one
    assert told({0: (0.0, 0.06, 0.0), 1: (0.0, 0.0, 0.0)}) == ()


def test_a_report_has_it() -> None:
    made = placement(plan(), ())

    def notes(load: float) -> str:
        ranks = len(made.devices_used)
        record = record_of(ranks, steps(dict.fromkeys(range(ranks), (0.0, load, load))))
        return " ".join(of_placed(a_report(), made, (), {}, record).notes)

    assert "a step waits 0.5 s for batches(step)" in notes(0.5)
    assert "batches(step)" not in notes(0.0)


def test_times_that_cannot_be_are_not_used() -> None:
    record = record_of(2, steps({0: (1e11, 0.0), 1: (0.0, 0.0)})).steps
    good, (note,) = believed(record.told_times(), DEVICES, job_seconds=9.0)
    assert good == (1,)
    assert record.load_seconds(record.done(0), good) == {1: (0.0, 0.0)}
    assert "rank 0 (s1/0) told are not used: they add up to 1e+11 s with the reading of" in note


def test_what_remains_of_a_run_has_it() -> None:
    state = RunState()
    facts = RunFacts(
        plan="p", run="r", kind="placed", sharing="job", started_unix=1e9, devices=DEVICES,
        memory_bytes=(1, 1), steps=10, samples=8, predicted_step_seconds=1.0,
        by_bucket={"": StepFacts(1.0, {})},
    )  # fmt: skip
    state.begin(facts, dict)
    for event in sorted(steps({0: (9.0, 0.5, 0.25), 1: (0.0, 0.25, 0.5)}), key=lambda e: e.step):
        state.event(event, now_unix=1e9)
    assert state.remaining_seconds == 7 * 1.5
    assert state.prediction_ratio == 1.0
