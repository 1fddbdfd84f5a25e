"""The metrics of a run: from what is decided and what ranks tell, by a strict reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.decide.traffic import decide_traffic
from placewire.controller.metrics import run_metrics
from placewire.controller.metrics.run_facts import RunFacts, StepFacts, facts_of
from placewire.controller.metrics.run_metrics import METRICS, exposition
from placewire.controller.metrics.run_state import RunState
from placewire.controller.plan.job import TorchrunJob
from placewire.job.contract.specification import (
    Failed,
    Finished,
    Resumed,
    Started,
    StepDone,
    Validated,
)
from tests.controller.plans import plan, plan_document
from tests.prometheus import parse

FACTS = RunFacts(
    plan="p", run="2026-11-28T10-00-00", kind="placed", sharing="guarantee", started_unix=1e9,
    devices=("s1/0", "s2/0"), memory_bytes=(1000, 2000), steps=10, samples=8,
    predicted_step_seconds=2.0,
    by_bucket={"": StepFacts(2.0, {("s1", "s2", "nic0"): 100.0, ("s1", "s2", "nic1"): 50.0})},
)  # fmt: skip


def begun(facts: RunFacts = FACTS) -> RunState:
    state = RunState()
    state.begin(facts, lambda: {("s1", "nic0"): 700, ("s1", "nic1"): 300, ("s2", "nic0"): 9})
    for rank in range(len(facts.devices)):
        state.event(Started(rank=rank, pid=1, structure_hash=""))
    return state


def step(state: RunState, number: int, *seconds: float, bucket: str | None = None) -> None:
    """seconds: by rank. Rank 0 computes the loss."""
    for rank, one in enumerate(seconds):
        loss = None if rank else 1 / (number + 1)
        done = StepDone(rank=rank, step=number, seconds=one, loss=loss, bucket=bucket)
        state.event(done, now_unix=1e9 + number)


def value(state: RunState, name: str, **labels: str) -> float | None:
    found = [
        v
        for (n, held), v in parse(exposition(state)).items()
        if n == f"placewire_run_{name}" and held >= labels.items()
    ]
    assert len(found) <= 1, (name, labels, found)
    return found[0] if found else None


def test_before_a_job_there_is_nothing() -> None:
    assert exposition(RunState()) == ""


def test_a_step_is_done_once_every_rank_did_it_and_as_long_as_its_slowest() -> None:
    state = begun()
    step(state, 0, 9.0, 9.0)
    step(state, 1, 3.0, 5.0)
    state.event(StepDone(rank=0, step=2, seconds=3.0))
    assert (value(state, "steps_total"), value(state, "planned_steps")) == (2, 10)
    assert value(state, "step_seconds_total") == 14.0
    assert value(state, "rank_step_seconds_total", rank="0", server="s1", device="s1/0") == 15.0
    assert value(state, "last_step_timestamp_seconds") == 1e9 + 1
    assert value(state, "samples_total") == 16
    assert value(state, "loss") == 0.5


def test_a_loss_that_is_not_finite_is_counted_and_no_former_one_is_claimed() -> None:
    state = begun()
    step(state, 0, 1.0, 1.0)
    assert (value(state, "loss"), value(state, "non_finite_loss_steps_total")) == (1.0, 0)
    for number in (1, 2):
        # The second received the loss, and tells of it, too.
        for rank in (0, 1):
            odd = StepDone(rank=rank, step=number, seconds=1, non_finite_loss="inf")
            state.event(odd)
    assert (value(state, "loss"), value(state, "non_finite_loss_steps_total")) == (None, 2)
    state.event(Validated(rank=0, step=3, batches=1, seconds=1, loss=0.25))
    state.event(Validated(rank=0, step=6, batches=1, seconds=1))
    assert value(state, "validation_loss") is None
    step(state, 3, 1.0, 1.0)
    assert (value(state, "loss"), value(state, "non_finite_loss_steps_total")) == (0.25, 2)


def test_the_ratio_leaves_the_first_step_out() -> None:
    state = begun()
    step(state, 0, 90.0, 90.0)
    assert value(state, "step_prediction_ratio") is None
    for number in (1, 2):
        step(state, number, 3.0, 1.0)
    assert value(state, "predicted_step_seconds") == 2.0
    assert value(state, "step_prediction_ratio") == 1.5
    assert value(state, "remaining_seconds") == 7 * 3.0


def test_each_bucket_is_compared_with_its_own_prediction() -> None:
    of = {"long": StepFacts(4.0, {("s1", "s2", "nic0"): 10.0}),
          "short": StepFacts(1.0, {("s1", "s2", "nic0"): 1.0})}  # fmt: skip
    state = begun(RunFacts(**{**vars(FACTS), "by_bucket": of}))
    step(state, 0, 4.0, 4.0, bucket="long")
    step(state, 1, 4.0, 4.0, bucket="long")
    step(state, 2, 1.0, 1.0, bucket="short")
    assert value(state, "step_prediction_ratio") == 1.0
    assert value(state, "nic_planned_bytes_total", server="s1", nic="nic0") == 21.0


def test_names_of_buckets_that_a_model_makes_up_take_no_room() -> None:
    state = begun()
    for number in range(50):
        step(state, number, 1.0, 1.0, bucket=f"b{number}")
    assert len(state.steps_of) == 1 and value(state, "steps_total") == 50


def test_bytes_planned_grow_with_the_steps() -> None:
    state = begun()
    for number in range(3):
        step(state, number, 1.0, 1.0)
    pair = {"server": "s1", "destination": "s2", "nic": "nic1"}
    assert value(state, "pair_planned_bytes_total", **pair) == 150.0
    assert value(state, "nic_planned_bytes_total", server="s1", nic="nic0") == 300.0
    assert value(state, "nic_transmit_bytes_total", server="s1", nic="nic0") == 700


def test_steps_before_a_checkpoint_are_done_and_send_nothing_again() -> None:
    state = begun()
    state.event(Resumed(rank=0, step=4, path="/c"))
    assert value(state, "steps_total") == 4
    step(state, 4, 1.0, 1.0)
    assert value(state, "steps_total") == 5
    assert value(state, "nic_planned_bytes_total", server="s1", nic="nic0") == 100.0


def test_a_rank_that_is_gone_stays_at_0_and_others_are_absent_after_the_job() -> None:
    state = begun()
    assert value(state, "rank_up", rank="1", server="s2", device="s2/0") == 1
    state.rank_gone(1)
    assert value(state, "rank_up", rank="1") == 0
    state.end_job()
    assert (value(state, "rank_up", rank="0"), value(state, "rank_up", rank="1")) == (None, 0)


def test_a_rank_that_tells_of_a_failure_is_gone_and_one_that_has_finished_is_absent() -> None:
    state = begun()
    state.event(Failed(rank=0, what="no room"))
    state.event(Finished(rank=1, traffic=(), peak_memory_bytes=9, step_memory_bytes=7))
    assert (value(state, "rank_up", rank="0"), value(state, "rank_up", rank="1")) == (0, None)
    assert value(state, "rank_memory_bytes", rank="1") == 7
    assert value(state, "rank_memory_limit_bytes", rank="1") == 2000


def test_memory_is_the_last_that_was_told() -> None:
    state = begun()
    state.event(StepDone(rank=0, step=0, seconds=1, memory_bytes=600))
    state.event(StepDone(rank=0, step=1, seconds=1))
    assert value(state, "rank_memory_bytes", rank="0") == 600
    assert value(state, "rank_memory_bytes", rank="1") is None


def test_only_the_latest_reported_names_are_shown() -> None:
    """A model may report under new names in each step."""
    state = begun()
    for number in range(3):
        state.event(StepDone(rank=0, step=number, seconds=1, metrics={f"m{number}": number}))
    names = [dict(labels).get("metric") for _, labels in parse(exposition(state))]
    assert [name for name in names if name] == ["m2"]


def test_ranks_report_different_metrics_of_a_step() -> None:
    state = begun()
    state.event(StepDone(rank=0, step=0, seconds=1, metrics={"accuracy": 0.5}))
    state.event(StepDone(rank=1, step=0, seconds=1, metrics={"balance": 2}))
    assert value(state, "metric", metric="accuracy") == 0.5
    assert value(state, "metric", metric="balance") == 2


def link(destination: str) -> LinkMeasurement:
    return LinkMeasurement(
        source="s1", destination=destination, rail="a", nic="nic0", queue_id=2,
        promised_bits_per_second=8e6, at_most_bits_per_second=9e6, wire_bits_per_second=8.4e6,
        measured_bits_per_second=7.2e6, within_tolerance=True,
    )  # fmt: skip


def test_what_was_promised_and_delivered_is_in_bytes() -> None:
    state = begun()
    state.links = (link("s2"),)
    pair = {"server": "s1", "destination": "s2", "nic": "nic0"}
    assert value(state, "pair_promised_bytes_per_second", **pair) == 1e6
    assert value(state, "pair_delivered_bytes_per_second", **pair) == 0.9e6


def test_a_cluster_of_very_many_pairs_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_metrics, "MOST_PAIRS", 1)
    state = begun()
    step(state, 0, 1.0, 1.0)
    state.links = (link("s2"), link("s3"))
    names = {name for name, _ in parse(exposition(state))}
    assert not any("pair" in name for name in names)
    assert "placewire_run_nic_planned_bytes_total" in names


def test_every_metric_is_shown_of_a_run_that_has_all_of_it() -> None:
    state = begun()
    step(state, 0, 1.0, 1.0)
    step(state, 1, 1.0, 1.0)
    state.links = (link("s2"),)
    state.event(Validated(rank=0, step=2, batches=1, seconds=1, loss=0.25))
    state.event(StepDone(rank=0, step=2, seconds=1, metrics={"a": 1}, memory_bytes=5))
    shown = {name for name, _ in parse(exposition(state))}
    assert shown == {metric.name for metric in METRICS}


def test_a_script_s_nics_are_compared_with_their_shares(tmp_path: Path) -> None:
    document = plan_document(2)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
    del document["solve"]
    of = plan(document)
    assert isinstance(of.job, TorchrunJob)
    facts = facts_of("r", of, decide_traffic(of, of.job, tmp_path), 1.0)
    assert facts.devices == ("s1/0", "s2/0")
    state = begun(facts)
    total = sum(facts.shares[place] for place in facts.shares if place[0] == "s1")
    assert total == pytest.approx(1.0)
    for nic in ("nic0", "nic1"):
        planned = value(state, "nic_planned_bytes_total", server="s1", nic=nic)
        assert planned == pytest.approx(1000 * facts.shares["s1", nic])
    names = {name for name, _ in parse(exposition(state))}
    assert not any("step" in name or "samples" in name for name in names)
