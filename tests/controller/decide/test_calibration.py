"""Tests what a calibration reports and keeps, and with which latency a plan is then decided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from placewire.controller.compile.ranks import calibration_specs
from placewire.controller.decide.measured import calibration
from placewire.controller.decide.measured.calibration import (
    ASSUMED_SETUP_SECONDS,
    calibrated_rows,
    keep,
    kept_setup_seconds,
    wants_calibration,
    with_measured,
)
from placewire.controller.errors import PlacewireError, PlanError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.plan import Plan
from placewire.controller.records.report import CalibratedRow
from placewire.job.contract.specification import Calibrated, MeasuredPath
from placewire.optimizer.cluster import MessageTime
from tests.controller.plans import placement, plan, plan_document


def measured_plan() -> Plan:
    document = plan_document()
    document["cluster"]["setup_latency"] = "measured"
    return plan(document)


def path(source: str, destination: str, rail: str, setup: float, rate: float) -> MeasuredPath:
    return MeasuredPath(
        source=source,
        destination=destination,
        rails=(rail,),
        setup_seconds=setup,
        bits_per_second=rate,
    )


def rows(*setups: float) -> tuple[CalibratedRow, ...]:
    paths = tuple(path("s1", "s2", rail, s, 19e6) for rail, s in zip("abc", setups, strict=False))
    of = placement(plan(), (("s1", "s2", "a", 20e6),))
    return calibrated_rows(of, [Calibrated(rank=0, paths=paths)])


def test_a_path_is_shown_beside_what_was_predicted_with() -> None:
    first, second = rows(0.0004, 0.0006)
    assert (first.rail, first.promised_bits_per_second, first.bits_per_second) == ("a", 20e6, 19e6)
    assert (first.planned_setup_seconds, first.setup_seconds) == (pytest.approx(200e-6), 0.0004)
    assert second.promised_bits_per_second is None, "nothing was allocated to it"


def test_a_path_to_a_server_that_is_not_there_is_left_out() -> None:
    paths = (path("s1", "s9", "a", 0.001, 19e6), path("s1", "s2", "a", 0.0004, 19e6))
    of = placement(plan(), (("s1", "s2", "a", 20e6),))
    (row,) = calibrated_rows(of, [Calibrated(rank=0, paths=paths)])
    assert row.destination == "s2"


def test_a_measured_latency_is_assumed_then_kept_for_this_cluster_only(tmp_path: Path) -> None:
    of, said = measured_plan(), list[str]()
    assert wants_calibration(of, tmp_path)
    assumed = with_measured(of, tmp_path, said.append)
    assert assumed.payload_cluster.setup_latency_seconds == ASSUMED_SETUP_SECONDS
    assert "assumed" in said[0] and "100 µs and 2.1 ms a MiB" in said[1] and "assumed" in said[1]
    assert assumed.payload_cluster.message_seconds == pytest.approx(1e-4)
    assert assumed.payload_cluster.message_seconds_per_byte == pytest.approx(2e-9)
    message = MessageTime(5e-5, 1e-9)
    assert keep(of, rows(0.0004, 0.0006, 0.0009), tmp_path, message) == 0.0006
    assert not wants_calibration(of, tmp_path)
    known = with_measured(of, tmp_path, said.append)
    assert known.payload_cluster.setup_latency_seconds == 0.0006
    assert "as measured" in said[-1] and "as measured" in said[-2]
    assert known.payload_cluster.message_seconds == pytest.approx(5e-5)
    assert known.payload_cluster.message_seconds_per_byte == pytest.approx(1e-9)
    document = plan_document(rate="40Mbit")
    document["cluster"]["setup_latency"] = "measured"
    assert kept_setup_seconds(plan(document), tmp_path) is None, "other NICs"


async def test_what_the_cache_does_not_take_ends_no_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is shaped by then and the job ready; the latency is for the next time."""

    async def run_ranks(
        _: object, __: object, on_event: Callable[[Calibrated], None], **___: object
    ) -> None:
        on_event(Calibrated(rank=0, paths=(path("s1", "s2", "a", 0.0004, 19e6),)))

    monkeypatch.setattr(calibration, "run_ranks", run_ranks)
    (tmp_path / "cache").write_text("in its place")
    of, said = measured_plan(), list[str]()
    (row,) = await calibration.calibrate(
        of, placement(plan(), (("s1", "s2", "a", 20e6),)), tmp_path / "placement.json",
        NoLauncher(), tmp_path / "cache", said.append, lambda: 30.0,
    )  # fmt: skip
    assert row.setup_seconds == 0.0004
    assert "that is not kept" in said[-1] and "the cache cannot be written" in said[-1]


def test_a_latency_of_the_plans_own_is_left_alone(tmp_path: Path) -> None:
    keep(measured_plan(), rows(0.0004), tmp_path)
    assert with_measured(plan(), tmp_path, print).cluster.setup_latency_seconds == pytest.approx(
        200e-6
    )
    assert not wants_calibration(plan(), tmp_path)
    document = plan_document()
    document["network"]["calibrate"] = True
    assert wants_calibration(plan(document), tmp_path)


def test_a_replay_emulates_a_latency_that_it_must_be_told(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text("{}")
    document = plan_document()
    document["job"] = {"kind": "replay", "graph": str(tmp_path / "g.json"), "steps": 1}
    document["cluster"]["setup_latency"] = "measured"
    with pytest.raises(PlanError, match=r"cluster\.setup_latency: measured is for kind: placed"):
        plan(document)


def test_there_is_one_rank_a_server_on_the_rails_that_all_are_on() -> None:
    document = plan_document(3)
    del document["cluster"]["servers"][2]["nics"][1]
    of = plan(document)
    specs = calibration_specs(of, placement(of, ()), Path("placement.json"))
    assert [spec.device for spec in specs] == ["s1/0", "s2/0", "s3/0"]
    assert {tuple(one.rail for one in spec.rail_interfaces) for spec in specs} == {("a",)}
    assert {spec.master_address for spec in specs} == {"10.9.0.1"}
    alone = plan(plan_document(1))
    assert calibration_specs(alone, placement(alone, ()), Path("p")) == ()


def test_a_message_time_that_no_plan_can_have_is_not_kept(tmp_path: Path) -> None:
    """Ranks tell what their user decides."""
    of = measured_plan()
    for wrong in (MessageTime(61.0, 0.0), MessageTime(1e-4, 1e-3)):
        with pytest.raises(PlacewireError, match="is more than a plan can have"):
            keep(of, rows(0.0004), tmp_path, wrong)
    keep(of, rows(0.0004), tmp_path, MessageTime(5e-5, 1e-9))
    (file,) = tmp_path.glob("calibration-*.json")
    good = file.read_text()
    file.write_text(
        good.replace('"message_seconds_per_byte":1e-09', '"message_seconds_per_byte":5.0')
    )
    assert file.read_text() != good
    found = with_measured(of, tmp_path, print).payload_cluster
    assert found.message_seconds_per_byte == pytest.approx(2e-9), "assumed"


def test_a_latency_that_no_plan_can_have_is_not_kept(tmp_path: Path) -> None:
    """Every later command ended with a traceback until the file was removed by hand."""
    of = measured_plan()
    with pytest.raises(PlacewireError, match="is more than a plan can have"):
        keep(of, rows(1e12, 1e12), tmp_path)
    assert kept_setup_seconds(of, tmp_path) is None
    keep(of, rows(0.0004), tmp_path)
    (file,) = tmp_path.glob("calibration-*.json")
    good = file.read_text()
    for wrong in ("1e9", "-1", "NaN", "1" + "0" * 400):
        file.write_text(
            good.replace('"setup_seconds":0.0004,"mes', f'"setup_seconds":{wrong},"mes')
        )
        assert file.read_text() != good and kept_setup_seconds(of, tmp_path) is None
        assert with_measured(of, tmp_path, print).payload_cluster.setup_latency_seconds == (
            ASSUMED_SETUP_SECONDS
        )
