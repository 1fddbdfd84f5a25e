"""The page of a run: it shows what the report says, asks nobody for anything, and obeys nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.cli import main
from placewire.controller.page.page import report_page
from placewire.controller.records.journal import Journal
from placewire.controller.records.nic_use import NicUse, NicUseRow
from placewire.controller.records.of_buckets import BucketRow
from placewire.controller.records.program import ProgramRow
from placewire.controller.records.report import FailureRow, RailRow
from placewire.optimizer.placement import save_placement
from tests.controller.page.elements import Elements
from tests.controller.page.reports import a_report, link, placed

ODD = "<script>alert(1)</script> \x1b[2J \u202e"


def test_nothing_of_others_is_obeyed_and_no_request_leaves_the_page() -> None:
    page = report_page(
        a_report(
            links=(link("s1", "s2", error=ODD),),
            failure=FailureRow(rank=1, server=ODD, what=ODD, remedy=ODD),
            notes=(ODD,),
            rails=(
                RailRow(
                    server="s1", rail=ODD, nic=ODD, sent_bytes=9, share=1.0, planned_share=1.0,
                    within_tolerance=None,
                ),
            ),
            program=ProgramRow(kind="script", name=ODD), files={"allocation": ODD},
        )
    )  # fmt: skip
    elements = Elements(page)
    assert "\x1b" not in page and "\u202e" not in page and "\\x1b[2J" in page
    named = {name for name, *_ in elements.found}
    assert not named & {"script", "link", "img", "iframe", "a", "object", "embed", "form", "base"}
    assert not any(
        key in attributes for _, attributes, _ in elements.found for key in ("src", "href")
    )
    assert not re.search(r"url\(|@import|https?:", page)
    (policy,) = (a for a, _ in elements.of("meta") if a.get("http-equiv"))
    assert (policy["content"] or "").startswith("default-src 'none'")


def test_what_the_run_trained_is_named() -> None:
    program = ProgramRow(kind="model", name="package.models:step")
    assert "model package.models:step, " in report_page(a_report(program=program))
    assert "model" not in Elements(report_page(a_report())).of("p", "small")[0][1]


def test_each_promised_rate_is_a_cell_and_one_that_is_not_kept_is_marked() -> None:
    links = (link("s1", "s2"), link("s2", "s1", 40e6), link("s1", "s2", rail="b"))
    elements = Elements(report_page(a_report(links=links)))
    kept, broken = elements.of("td", "kept"), elements.of("td", "broken")
    assert [text for _, text in kept] == ["99 Mbit/s", "99 Mbit/s"]
    assert [text for _, text in broken] == ["40 Mbit/s!"]
    assert broken[0][0]["title"] == (
        "s2 to s1 on nic0: promised 100 Mbit/s, measured 40 Mbit/s (-60.0%)"
    )
    assert len(elements.of("table", "matrix")) == 2


def test_a_large_cluster_has_small_cells_and_stays_a_small_file() -> None:
    names = [f"server-{k}" for k in range(32)]
    pairs = [(a, b) for a in names for b in names if a != b]
    links = [link(a, b, rail=rail) for a, b in pairs for rail in "abc"]
    page = report_page(a_report(links=tuple(links)))
    cells = Elements(page).of("td", "kept")
    assert len(cells) == 3 * 32 * 31 and not any(text for _, text in cells)
    assert len(page) < 1_000_000


def nic(server: str, *sent: int | None) -> NicUseRow:
    return NicUseRow(
        server=server, rail="a", nic="nic0", rate_bits_per_second=80e6, sent_bytes=sent,
        received_bytes=(0,) * len(sent),
    )  # fmt: skip


def test_nics_over_time_have_the_steps_and_gaps_where_nothing_is_known() -> None:
    use = NicUse(
        seconds=(0.0, 1.0, 2.0, 3.0, 4.0, 5.0),
        step_end_seconds=(1.5, 3.5),
        nics=(
            nic("s1", 0, 5_000_000, 10_000_000, 10_000_000, 10_000_000, 10_000_000),
            nic("s2", 0, 1_000, None, 3_000, 0, 1_000),
        ),
    )
    elements = Elements(report_page(a_report(nic_use=use)))
    lines = [attributes["points"] or "" for attributes, _ in elements.of("polyline", "rail0")]
    sent_by_first, _, *sent_by_second, _ = lines
    # 40 of 80 Mbit/s is half of the upper half, which ends at pixel 50.
    assert sent_by_first == "64,25 128,25 192,50 256,50 320,50"
    assert len(sent_by_second) == 2  # What lies between an answer and a missing one is not known.
    marks = [a["x1"] for a, _ in elements.of("line", "mark") if a["x1"] == a["x2"]]
    assert marks == ["96.0", "224.0"] * 2
    assert any(
        "at most 40 Mbit/s, 50% of its rate" in text for _, text in elements.of("figcaption")
    )


def test_a_placed_step_shows_its_layers_its_timelines_and_its_steps(tmp_path: Path) -> None:
    report, placement = placed(tmp_path, traced=True)
    page = report_page(report)
    elements = Elements(page)
    assert "data parallelism over 4 devices" in page
    assert "The step over time, predicted" in page and "The step over time, measured" in page
    computed = [
        a for kind in ("forward", "backward", "update") for a, _ in elements.of("rect", kind)
    ]
    ends = [float(a["x"] or 0) + float(a["width"] or 0) for a in computed]
    assert max(ends) == pytest.approx(900, abs=2) and elements.of("rect", "receive")
    # Micro-batches alternate between two colours.
    assert elements.of("g", "odd") or elements.of("rect", "odd")
    assert ".odd.forward {" in page and not re.search(r"^\.forward \{ fill: #b9", page, re.M)
    assert [text for _, text in elements.of("td", "runs")] == ["1"] * len(placement.devices_used)
    measured = elements.of("polyline", "measured")
    # The steps' times, the losses with a gap in them, and a metric.
    assert len(measured) == 4 and len(elements.of("polyline", "validated")) == 2
    assert "4 steps of 2.1 s each, 5.0% longer than predicted." in page


def test_each_bucket_has_a_row() -> None:
    known: dict[str, Any] = {"share": 0.5, "bound_seconds": 0.1, "single_device_seconds": None}
    long = BucketRow(
        name=ODD, steps=3, predicted_step_seconds=0.2, measured_step_seconds=0.25, **known
    )
    short = BucketRow(
        name="short", steps=0, predicted_step_seconds=0.15, measured_step_seconds=None, **known
    )
    page = report_page(a_report(buckets=(long, short)))
    cells = [text for _, text in Elements(page).of("td", "figure")]
    assert cells[:4] == ["3", "100 ms", "200 ms", "250 ms"]
    assert cells[4:8] == ["0", "100 ms", "150 ms", ""]
    assert ODD not in page
    assert "Buckets" not in report_page(a_report())


@pytest.mark.parametrize("harm", ["gone", "broken", "of another run", "of another graph"])
def test_files_that_do_not_fit_any_more_are_not_shown(tmp_path: Path, harm: str) -> None:
    report, placement = placed(tmp_path)
    file = tmp_path / "placement.json"
    if harm == "gone":
        file.unlink()
    elif harm == "broken":
        file.write_text("{")
    elif harm == "of another run":
        update = {"rates_bits_per_second": (("s1", "s2", "a", 1e6),)}
        save_placement(placement.model_copy(update=update), file)
    else:
        save_placement(placement.model_copy(update={"structure_hash": "0" * 64}), file)
    page = report_page(report)
    Elements(page)
    assert "Its layers and its timeline are not shown" in page and "The steps" in page


def test_the_page_says_what_was_changed_and_what_became_of_it() -> None:
    page = report_page(a_report())
    assert "add 2 queues, add 1 bridges" in page
    assert page.count("back on its former state, which every server read back") == 2
    assert "could not be put back" in report_page(a_report(network="not restored"))
    failed = a_report(failure=FailureRow(rank=None, server="s2", what="gone", remedy="look there"))
    assert "The run failed: s2: gone" in report_page(failed)


def ended(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as raised:
        main(["report", *map(str, arguments)])
    return int(raised.value.code or 0)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with Journal.open(tmp_path / "state") as journal:
        for name in ("first", "second"):
            report = a_report(plan_name="small", notes=(f"of the {name} run",))
            journal.record_run("small", report.model_dump_json())
        journal.record_run("old", '{"version": 99}')
    return tmp_path / "state"


def test_a_page_is_written_of_a_run_in_the_journal_or_in_a_file(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended("small", "--state-dir", state) == 0
    assert "of the second run" in (tmp_path / "small.html").read_text()
    assert ended("small", "--back", "2", "--out", "other.html", "--state-dir", state) == 0
    assert "of the first run" in (tmp_path / "other.html").read_text()
    (tmp_path / "run.json").write_text(a_report(notes=("of a file",)).model_dump_json())
    assert ended("run.json", "--out", "third.html") == 0
    assert "of a file" in (tmp_path / "third.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["small", "--back", "3"], "2 runs of plan 'small' are in the journal"),
        (["old"], "is no run's report of this release"),
        (["none.json"], "cannot be read"),
        (["small", "--out", "none/page.html"], "--out none/page.html"),
        (["run.json", "--out", "run.json"], "is the file run.json itself"),
    ],
)
def test_a_run_that_cannot_be_shown_is_told(
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = a_report().model_dump_json()
    (tmp_path / "run.json").write_text(kept)
    assert ended(*arguments, "--state-dir", state) == 2
    assert told in capsys.readouterr().err
    assert (tmp_path / "run.json").read_text() == kept and not list(tmp_path.glob("*.html"))
