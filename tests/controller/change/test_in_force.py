"""Which allocation a decision in force is measured by."""

from __future__ import annotations

from pathlib import Path

from placewire.controller.change.in_force import allocation_of
from placewire.controller.records.job_record import JobRecord
from placewire.controller.records.journal import Journal
from placewire.controller.records.report import RunReport, of_placed
from placewire.optimizer.placement import save_placement
from tests.controller.plans import placement, plan

PLAN = plan()
BLANK = RunReport(
    plan_name="small", plan_digest="d", generations={}, changes={}, sharing="strict",
    links=(), network="kept", stage_seconds={}, files={},
)  # fmt: skip


def test_a_placement_that_took_the_place_of_the_decided_one_is_not_measured(tmp_path: Path) -> None:
    """As after somebody emptied the cache, and a search of the same question found another: what it
    promises was never in force, and a rollback would fail for it."""
    file = tmp_path / "placement.json"
    decided = placement(PLAN, (("s1", "s2", "a", 30e6),))
    report = of_placed(BLANK, decided, (), {"placement": file}, JobRecord())
    with Journal.open(tmp_path / "state") as journal:
        journal.record_run("small", report.model_dump_json())
        assert allocation_of(journal, "small", "d") is None, "there is no file"
        save_placement(decided.model_copy(update={"wall_seconds": {"solve": 1.0}}), file)
        found = allocation_of(journal, "small", "d")
        assert found is not None and found.rates_bits_per_second == decided.rates_bits_per_second
        save_placement(placement(PLAN, (("s1", "s2", "a", 20e6),)), file)
        assert allocation_of(journal, "small", "d") is None
        former = report.model_copy(update={"allocation_digest": None})
        journal.record_run("small", former.model_dump_json())
        assert allocation_of(journal, "small", "d") is not None
