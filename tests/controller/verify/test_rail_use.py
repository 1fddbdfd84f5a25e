"""What a script's NICs sent is judged only where enough was sent to judge by."""

from __future__ import annotations

import io

import pytest

from placewire.controller.plan.plan import Plan
from placewire.controller.records.report import RunReport
from placewire.controller.show.story import Show
from placewire.controller.verify.rail_use import ENOUGH_BYTES, complaints, rail_rows
from placewire.job.contract.specification import Carried
from tests.controller.plans import plan, plan_document


@pytest.fixture
def script() -> Plan:
    document = plan_document(2)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
    del document["solve"], document["network"]["sharing"]
    return plan(document)


def printed(script: Plan, events: list[Carried]) -> str:
    carried = {event.rank: event for event in events}
    report = RunReport(
        plan_name="small", plan_digest="d", generations={}, changes={"s1": 1}, sharing="job",
        links=(), rails=rail_rows(script, carried), network="restored", stage_seconds={}, files={},
    )  # fmt: skip
    show = Show()
    out = show.console.file = io.StringIO()
    show.report(report)
    return out.getvalue()


def shown(script: Plan, *sent: tuple[int, int]) -> list[str]:
    """The last column of the table, a word for each NIC."""
    events = [
        Carried(rank=rank, seconds=1.0, sent_bytes={"a": a, "b": b})
        for rank, (a, b) in enumerate(sent)
    ]
    lines = printed(script, events).splitlines()
    return [line.split("│")[-2].strip() for line in lines if line.startswith("│")]


def test_a_nic_that_sent_nothing_is_not_as_planned(script: Plan) -> None:
    assert shown(script, (0, 0), (1000, 0)) == [
        "nothing sent", "nothing sent", "too little sent", "nothing sent"
    ]  # fmt: skip


def test_enough_bytes_are_judged(script: Plan) -> None:
    half = ENOUGH_BYTES // 2
    assert shown(script, (half, half), (2 * half, 0)) == ["as planned"] * 2 + ["off"] * 2
    rows = rail_rows(script, {0: Carried(rank=0, seconds=1.0, sent_bytes={"a": 5, "b": 0})})
    assert complaints(rows) == [], "a run too short to tell is no complaint"


def test_unequal_use_is_put_down_to_what_is_not_cut(script: Plan) -> None:
    """gloo's large collectives are cut between all NICs."""
    event = Carried(rank=0, seconds=1.0, sent_bytes={"a": 2 * ENOUGH_BYTES, "b": 0})
    told = " ".join(printed(script, [event]).split())
    assert "a collective that is not cut" in told and "mostly sends" in told


def test_a_script_whose_servers_trained_alone_is_told_why_that_may_be(script: Plan) -> None:
    def told(*sent: int) -> bool:
        events = [
            Carried(rank=rank, seconds=1.0, sent_bytes={"a": some, "b": 0})
            for rank, some in enumerate(sent)
        ]
        return "each process trained by itself" in " ".join(printed(script, events).split())

    assert told(0, 0)
    assert told(13_000, 19_000), "as it was with Accelerate, which made no process group"
    assert not told(240_000, 250_000), "as it was with DistributedDataParallel of one small layer"
    assert not told(0), "there is nobody to send to"
