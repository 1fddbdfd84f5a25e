"""Output for people loses nothing at 100 columns, however long names are."""

from __future__ import annotations

import io
import time
from typing import Any, Literal, cast

import pytest
from rich.console import Console

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.agent.contract.messages import Observation, Previewed, ReadBackResult
from placewire.agent.contract.state import Change, DriftState, LeaseState, ObservedState
from placewire.controller.records.joined_steps import Step, Steps
from placewire.controller.records.report import RunReport
from placewire.controller.show.changes import diff_lines, previewed_lines
from placewire.controller.show.placements import (
    beside_tensors,
    kept_in_python,
    variants_table,
    where_data_is,
    why,
)
from placewire.controller.show.reports import steps_table
from placewire.controller.show.story import Show
from placewire.job.contract.specification import Failed, Finished, StepDone, Validated
from placewire.optimizer.placement import Placement, Sent, Variant
from tests.controller.plans import placement, plan

SERVERS = ("gpu-node-a-rack12-01", "gpu-node-a-rack12-02")
NIC = "enp129s0f1np1"
ERROR = (
    "error - unable to connect to server - server may have stopped running or use a different port "
    "[firewall]: Connection refused"
)


def _link(
    source: str,
    destination: str,
    *,
    measured: float = 23_456_789_012.0,
    at_most: float = 380_912_345_678.0,
    error: str | None = None,
) -> LinkMeasurement:
    return LinkMeasurement(
        source=source, destination=destination, rail="a", nic=NIC, queue_id=61439,
        promised_bits_per_second=380_912_345_678.0,
        at_most_bits_per_second=at_most, wire_bits_per_second=399_123_456_789.0,
        measured_bits_per_second=measured, within_tolerance=error is None and measured > 3e11,
        error=error,
    )  # fmt: skip


def _printed(*links: LinkMeasurement) -> str:
    show = Show()
    show.console.file = io.StringIO()
    show.console.width = 100
    show.links(links)
    return show.console.file.getvalue()


def test_no_column_is_lost_at_long_names_and_fast_nics() -> None:
    text = _printed(_link(*SERVERS), _link(*reversed(SERVERS), measured=380_000_000_000.0))
    table = text.splitlines()
    assert max(map(len, table)) <= 100
    assert "…" not in text and "..." not in text
    for word in ("queue", "HTB rate", "promised", "measured", "off by", "NIC"):
        assert word in text
    for value in ("61439", "399123.46", "380912.35", "23456.79", "-93.8%", "broken", "kept"):
        assert value in text
    for column, whole in ((1, SERVERS[0]), (2, SERVERS[1]), (3, NIC)):
        cells = [line.split("│")[column].strip() for line in table if line.startswith("│")]
        assert "".join(cells).startswith(whole), "folded, and every character of it there"


def test_more_than_a_floor_is_no_error() -> None:
    more, less = 390_000_000_000.0, 360_000_000_000.0
    text = _printed(
        _link("s1", "s2", measured=more, at_most=4e11),
        _link("s1", "s3", measured=less, at_most=4e11),
        _link("s2", "s1", measured=more),
    )
    rows = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    assert [[row[k].strip() for k in (6, 8)] for row in rows] == [
        ["≥ 380912.35", ""], ["≥ 380912.35", "-5.5%"], ["380912.35", "+2.4%"]
    ]  # fmt: skip


def test_drift_is_told_with_what_became_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**fields: Any) -> str:
        show = Show()
        show.console.file = io.StringIO()
        show.console.width = 200
        found = ReadBackResult(deviations=(), problems=(), drift=DriftState(**fields))
        show.status({"s1": None}, {"s1": found})
        return show.console.file.getvalue()

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert "changed" not in told(policy="heal")
    healed = told(policy="heal", drifts=3, heals=2, last_heal_unix=now, notes=("[rule] 5 differs",))
    assert "others changed what is in force 3 times; put back 2, last 0 s ago\n" in healed
    assert "s1: [rule] 5 differs" in healed
    reported = told(policy="report", drifts=1, since_unix=now - 7)
    assert "once; nothing was put back; as it is now for 7 s (the plan says `drift" in reported


def test_what_an_idle_server_owes_or_carries_is_told() -> None:
    owed = "NIC nic0 (02:00:00:00:00:01) was away and is owed address 10.7.0.1/24"
    told = "NIC nic2 was left up on 2026-11-25 20:17 UTC, though it was down before"
    lease = LeaseState(phase="idle", generation=0, owed=(owed,), detail=told)
    state = ObservedState(problems=("server s1: carries Placewire's marks: bridges pw-nic1",))
    show = Show()
    show.console.file = io.StringIO()
    show.console.width = 200
    show.status({"s1": Observation(state=state, lease=lease)}, {})
    text = show.console.file.getvalue()
    assert f"s1: {told}\n" in text
    assert f"s1: {owed}\n" in text and "carries Placewire's marks: bridges pw-nic1" in text


@pytest.mark.parametrize("error", [ERROR, ERROR.replace(" - ", "\n")])
def test_an_error_is_one_line_below_the_table(error: str) -> None:
    lines = _printed(_link("s1", "s2"), _link("s2", "s1", measured=0.0, error=error)).splitlines()
    end = max(k for k, line in enumerate(lines) if line.startswith("└"))
    assert lines[end + 1 :] == [f"  s2 to s1 on {NIC}: {' '.join(error.split())}"]
    rows = [line for line in lines if line.startswith("│")]
    assert len(rows) == 2 and "failed" in rows[1] and "broken" in rows[0]


def _with_variants() -> Placement:
    """Of the second of two variants, whose step is worse than that of the first on one device."""
    made = placement(plan(), ())
    first, second = (
        Variant(
            name=name, structure_hash=structure, operators=operators, step_seconds=step,
            bound_seconds=bound, single_device_seconds=alone,
        )
        for name, structure, operators, step, bound, alone in (
            ("1 micro-batch", "1" * 64, 10, None, 0.25, 1.5),
            ("16 micro-batches, 8 shards", made.structure_hash, 20, 1.0, 0.5, None),
        )
    )  # fmt: skip
    return made.model_copy(update={"variants": (first, second), "single_device_seconds": None})


def test_variants_are_shown_with_what_is_known_of_each() -> None:
    show = Show()
    show.console.file = io.StringIO()
    show.console.width = 100
    show.console.print(variants_table(_with_variants()))
    rows = [line for line in show.console.file.getvalue().splitlines() if "micro-batch" in line]
    cells = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows]
    assert cells == [
        ["1 micro-batch", "10", "1.5 s", "250 ms", "not searched", ""],
        ["16 micro-batches, 8 shards", "20", "does not fit", "500 ms", "1 s", "taken"],
    ]


def test_a_placement_is_compared_with_all_variants() -> None:
    """One device needs no micro-batches, and another variant may have a lower bound."""
    said = why(_with_variants())
    assert said[:3] == [
        "predicted step 1 s; no placement of this variant can do better than 500 ms (gap 50.0%)",
        "no placement of any variant can do better than 250 ms",
        "the best single device would take 1.5 s: 1.50×",
    ]
    alone = why(placement(plan(), ()))
    assert alone[0] == "predicted step 1 s; no placement can do better than 500 ms (gap 50.0%)"
    assert "variant" not in " ".join(alone)


def test_the_device_of_the_loss_and_of_each_input_is_named() -> None:
    made = placement(plan(), ())
    operators = {"loss_1": "s2/0", "input_0": "s1/0", "input_1": "s2/0", **made.operators}
    message = made.messages[0].model_copy(update={"producer": "input_0", "bytes": 3000})
    made = made.model_copy(update={"operators": operators, "messages": (*made.messages, message)})
    lines = where_data_is(made, {"loss": "loss_1", "inputs": ["input_0", "input_1"]})
    assert lines == [
        "the loss is computed on s2/0",
        "the batch is read where its inputs are: input_0 on s1/0; input_1 on s2/0; "
        "2.9 KiB of it are sent on",
    ]
    other = {"producer": "op0", "bytes": 5000, "bundled": (Sent("input_0", 0, 3000),)}
    made = made.model_copy(update={"messages": (message.model_copy(update=other),)})
    assert where_data_is(made, {"loss": "loss_1", "inputs": ["input_0", "input_1"]}) == lines
    assert where_data_is(made, {"source": "imported"}) == []
    inference = {"inference": True, "outputs": ["loss_1", "input_0"], "inputs": ["input_1"]}
    assert where_data_is(made, inference)[0] == (
        "the outputs are computed: loss_1 on s2/0; input_0 on s1/0"
    )


def test_what_a_program_takes_is_told_beside_its_tensors() -> None:
    assert beside_tensors({"program_bytes": 350 << 20}) == [
        "beside the tensors on its device a rank's program takes 350.0 MiB"
    ]
    assert beside_tensors({"program_bytes": None}) == beside_tensors({}) == []
    show = Show()
    show.console.file = io.StringIO()
    done = Finished(rank=1, traffic=(), peak_memory_bytes=500 << 20)
    show.event(done)
    show.event(done.model_copy(update={"step_memory_bytes": 120 << 20}))
    more = {"step_memory_bytes": 120 << 20, "tensor_memory_bytes": 99 << 20}
    show.event(done.model_copy(update=more))
    first, second, third = show.console.file.getvalue().splitlines()
    assert first.endswith("rank 1 done, 500.0 MiB at most")
    assert second.endswith("rank 1 done, 500.0 MiB at most; its steps 120.0 MiB")
    assert third.endswith("at most; its steps 120.0 MiB, of which tensors 99.0 MiB")


def test_what_forward_keeps_is_told_as_capture_noted_it() -> None:
    assert kept_in_python({"kept": "forward changes x"}) == ["forward changes x"]
    assert kept_in_python({"kept": 3}) == kept_in_python({}) == []


def test_a_step_is_told_when_every_rank_has_ended_it() -> None:
    steps = Steps(ranks=2)
    assert steps.ended(StepDone(rank=0, step=0, seconds=1.0, loss=2.5)) is None
    assert steps.ended(StepDone(rank=0, step=1, seconds=3.0, loss=2.25)) is None
    assert steps.ended(StepDone(rank=1, step=0, seconds=2.0)) == Step(0, 2.0, 2.5)
    assert steps.ended(StepDone(rank=1, step=1, seconds=1.0)) == Step(1, 3.0, 2.25)
    assert Steps(ranks=1).ended(StepDone(rank=0, step=4, seconds=1.0)) == Step(4, 1.0, None)


def test_a_loss_that_is_not_finite_is_told_as_what_it_is() -> None:
    steps = Steps(ranks=2)
    steps.ended(StepDone(rank=1, step=3, seconds=1.0))
    step = steps.ended(StepDone(rank=0, step=3, seconds=2.0, non_finite_loss="nan"))
    assert str(step) == "step 3: 2.000 s, loss nan"
    odd = StepDone(rank=0, step=4, seconds=2.0, non_finite_loss="-inf", metrics={"accuracy": 0.5})
    assert str(Steps(ranks=1).ended(odd)) == "step 4: 2.000 s, loss -inf, accuracy 0.5"
    show, printed = Show(), io.StringIO()
    show.console = Console(width=100, file=printed, color_system=None)
    show.event(Validated(rank=0, step=8, batches=3, seconds=1.0))
    assert printed.getvalue().endswith("3 batches in 1.00 s, loss not finite\n")


def test_metrics_of_all_ranks_stand_beside_the_loss() -> None:
    steps = Steps(ranks=2)
    steps.ended(StepDone(rank=1, step=0, seconds=1.0, metrics={"accuracy": 0.25}))
    step = steps.ended(StepDone(rank=0, step=0, seconds=2.0, loss=2.5, metrics={"tokens": 4e9}))
    assert step is not None and step.metrics == {"accuracy": 0.25, "tokens": 4e9}
    # They stand in one order, whichever rank is the first to end a step.
    steps.ended(StepDone(rank=0, step=1, seconds=2.0, loss=2.5, metrics={"tokens": 4e9}))
    later = steps.ended(StepDone(rank=1, step=1, seconds=1.0, metrics={"accuracy": 0.25}))
    assert later is not None and [*later.metrics] == [*step.metrics] == ["accuracy", "tokens"]
    show = Show()
    printed = io.StringIO()
    show.console = Console(width=100, file=printed, color_system=None)
    show.event(StepDone(rank=0, step=0, seconds=2.0, loss=2.5, metrics=dict(step.metrics)))
    line = printed.getvalue()
    assert line.endswith("step 0: 2.000 s, loss 2.500000, accuracy 0.25, tokens 4e+09\n")


@pytest.mark.parametrize("validated", [False, True])
def test_a_line_of_many_metrics_is_whole(validated: bool) -> None:
    names = [f"accuracy_of_class_{k}" for k in range(9)]
    metrics = dict.fromkeys(names, 0.125)
    show, printed = Show(), io.StringIO()
    show.console = Console(width=100, file=printed, color_system=None, soft_wrap=True)
    if validated:
        show.event(Validated(rank=0, step=8, batches=3, seconds=1.0, loss=2.5, metrics=metrics))
    else:
        show.event(StepDone(rank=0, step=0, seconds=2.0, loss=2.5, metrics=metrics))
    told = ", ".join(f"{name} 0.125" for name in names)
    assert printed.getvalue().endswith(f", loss 2.500000, {told}\n")


@pytest.mark.parametrize(
    "after",
    [
        '"x"', "5", "[1]", "null", "[" * 100_000, "9" * 5000, "{",
        '{"min_bits_per_second": "a"}', '{"min_bits_per_second": [1]}',
        '{"min_bits_per_second": 1e400}', '{"min_bits_per_second": NaN}',
        '{"burst_bits": ' + "9" * 400 + "}", '{"burst_bits": true}',
    ],
)  # fmt: skip
def test_a_change_that_is_none_is_shown_as_its_text(after: str) -> None:
    (line,) = diff_lines(
        [Change(action="add", collection="queues", key="k", before=None, after=after)]
    )
    assert line.plain.startswith("  + queue      k") and len(line.plain) <= 100


def test_a_change_shows_rates_and_sizes_in_their_units() -> None:
    after = '{"nic":"nic0","queue_id":2,"min_bits_per_second":20000000,"burst_bits":80000}'
    (line,) = diff_lines(
        [Change(action="add", collection="queues", key="nic0 queue 2", before=None, after=after)]
    )
    assert line.plain.endswith("min 20 Mbit/s, burst 9.8 KiB")


@pytest.mark.parametrize(
    ("steps", "seconds", "measured", "told"),
    [
        (0, (), None, "no step was run"),
        (None, (), None, "no step was run"),
        (3, (), None, "not known, see the notes"),
        (1, (9.0,), 9.0, "1 step, the first, which warms up"),
        (None, (9.0, 1.0), 1.0, "median of 1 step, "),
        (3, (9.0, 1.0, 1.0), 1.0, "median of 2 steps, "),
    ],
)
def test_a_measured_step_says_on_how_many_steps_it_stands(
    steps: int | None, seconds: tuple[float, ...], measured: float | None, told: str
) -> None:
    report = RunReport(
        plan_name="small", plan_digest="d", generations={}, changes={}, sharing="strict",
        links=(), network="restored", stage_seconds={}, files={}, devices=("s1/0",),
        predicted_step_seconds=1.0, steps=steps, step_seconds=seconds,
        measured_step_seconds=measured,
    )  # fmt: skip
    out = Console(file=io.StringIO(), width=120)
    out.print(steps_table(report))
    assert told in cast(io.StringIO, out.file).getvalue()


def test_a_failed_job_says_how_many_steps_it_ran_where_their_times_are_not_used() -> None:
    show = Show()
    show.console.file = io.StringIO()
    show.failed(RunReport(
        plan_name="small", plan_digest="d", generations={}, changes={}, sharing="strict",
        links=(), network="restored", stage_seconds={}, files={}, first_step=4, steps=3,
    ))  # fmt: skip
    assert "the job ended after 7 steps" in show.console.file.getvalue()


@pytest.mark.parametrize("forced", ["", "1"])  # No terminal, and one.
def test_what_a_script_prints_and_why_a_rank_failed_are_shown_whole(
    monkeypatch: pytest.MonkeyPatch, forced: str
) -> None:
    """Each in one line, which a terminal wraps."""
    monkeypatch.setenv("FORCE_COLOR", forced)
    show = Show()
    assert show.console.is_terminal == bool(forced)
    out = show.console.file = io.StringIO()
    show.console.width = 80
    metrics = " ".join(f"'metric_{k}': '{k}.5'," for k in range(20)) + " the end"
    show.printed(3, f"[3] {metrics}")
    reason = "no memory for " + ", ".join(f"layer_{k}" for k in range(40)) + " and its gradient"
    show.event(Failed(rank=3, what=reason))
    show.progress(f"left out: {reason}")
    lines = out.getvalue().splitlines()
    told = (f"rank 3 | [3] {metrics}", f"  rank 3 failed: {reason}", f"  left out: {reason}")
    assert len(lines) == len(told)
    for line, text in zip(lines, told, strict=True):
        assert text in line


def test_a_script_has_no_steps_that_it_ended_after() -> None:
    show = Show()
    show.console.file = io.StringIO()
    show.failed(RunReport(
        plan_name="small", plan_digest="d", generations={}, changes={}, sharing="job",
        links=(), network="restored", stage_seconds={}, files={},
    ))  # fmt: skip
    told = show.console.file.getvalue()
    assert "the script did not come to its end" in told and "steps" not in told


def _change(action: Literal["add", "replace", "remove"], collection: str, key: str) -> Change:
    return Change(action=action, collection=collection, key=key, before="{}", after="{}")


def _answer(*changes: Change) -> Previewed:
    return cast(Any, Previewed).model_construct(changes=changes)


def _previewed(queues: int) -> Previewed:
    keys = [("addresses", "pw-nic0"), *(("queues", f"nic0 queue {k}") for k in range(queues))]
    changes = [_change("add", *key) for key in keys]
    return _answer(*changes, _change("remove", "flows", "old"))


def test_many_changes_are_counted_and_servers_that_have_the_same_share_lines() -> None:
    previewed = {"s1": _previewed(9), "s2": _previewed(4), "s3": _previewed(9)}
    counted = [line.plain for line in previewed_lines(previewed, every_change=False)]
    assert counted == [
        "s1, s3: 10 to add, 1 to remove on each", "  + 1 address, 9 queues", "  - 1 flow",
        "s2: 5 to add, 1 to remove", "  + 1 address, 4 queues", "  - 1 flow",
        "--full shows each change",
    ]  # fmt: skip
    full = [line.plain for line in previewed_lines(previewed, every_change=True)]
    assert len(full) == 3 + 11 + 6 + 11 and full[:2] == [
        "s1: 10 to add, 1 to remove", "  + address    pw-nic0",
    ]  # fmt: skip
    few = {"s1": _previewed(2)}
    assert previewed_lines(few, every_change=False) == previewed_lines(few, every_change=True)


@pytest.mark.parametrize("kinds", [1, 40])
def test_no_line_of_counted_changes_is_wider_than_a_terminal(kinds: int) -> None:
    changes = (
        _change("replace", f"things{k:02d}s", str(n)) for k in range(kinds) for n in range(30)
    )
    lines = previewed_lines({"s1": _answer(*changes)}, every_change=False)
    assert all(len(line.plain) <= 100 for line in lines)
