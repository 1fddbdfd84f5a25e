"""What people see of many servers stays short, and as narrow as a terminal."""

from __future__ import annotations

import io
from typing import Any

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.agent.contract.messages import Previewed
from placewire.agent.contract.state import Change, LeaseState
from placewire.controller.few_names import counts_in_words, few_names
from placewire.controller.records.of_traffic import TrafficRow
from placewire.controller.show.placements import placement_table, where_data_is
from placewire.controller.show.story import Show
from tests.controller.page.reports import a_report
from tests.controller.plans import placement, plan
from tests.optimizer.cases import cluster

MANY = tuple(f"s{k + 1}" for k in range(32))
PAIRS = tuple((one, other) for one in MANY for other in MANY if one != other)


def shown(*, every_change: bool = False) -> tuple[Show, io.StringIO]:
    show, printed = Show(every_change=every_change), io.StringIO()
    show.console.file = printed
    show.console.width = 100
    return show, printed


def link(source: str, destination: str, measured: float, error: str | None = None) -> Any:
    return LinkMeasurement(
        source=source, destination=destination, rail="a", nic="nic0", queue_id=2,
        promised_bits_per_second=1e6, at_most_bits_per_second=1e6, wire_bits_per_second=1.1e6,
        measured_bits_per_second=measured, within_tolerance=error is None and measured > 9e5,
        error=error,
    )  # fmt: skip


def test_rates_of_all_pairs_are_summed_up_by_nic_and_those_not_kept_are_shown() -> None:
    show, printed = shown()
    show.links([link(*pair, 5e5 if pair == ("s3", "s7") else 1e6) for pair in PAIRS])
    lines = printed.getvalue().splitlines()
    assert len(lines) < 50 and max(map(len, lines)) <= 100
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert ["s2", "nic0", "31", "31.00", "31.00", "+0.0%", "+0.0%", "all"] in cells
    assert ["s3", "nic0", "31", "31.00", "30.50", "-50.0%", "+0.0%", "30 of 31"] in cells
    assert [row for row in cells if row[-1] == "broken"] == [
        ["s3", "s7", "nic0", "2", "1.10", "1.00", "0.50", "-50.0%", "broken"]
    ]
    show, printed = shown(every_change=True)
    show.links([link(*pair, 1e6) for pair in PAIRS])
    assert printed.getvalue().count("kept") == len(PAIRS)


def test_an_error_that_all_measurements_have_is_told_once() -> None:
    show, printed = shown()
    show.links([link(*pair, 0.0, "all ran together for 0.1 of 5 s only") for pair in PAIRS])
    told = [line for line in printed.getvalue().splitlines() if "ran together" in line]
    assert told == ["  s1 to s2 on nic0 and 991 others: all ran together for 0.1 of 5 s only"]


def test_bytes_of_all_pairs_are_summed_up_by_device() -> None:
    rows = (
        TrafficRow(source=a, destination=b, rail="a", planned_bytes=1024, sent_bytes=1024)
        for a, b in PAIRS
    )
    show, printed = shown()
    counts = {**dict.fromkeys(MANY, 86), "s1": 212}
    show.report(a_report(traffic=tuple(rows), changes=counts))
    lines = printed.getvalue().splitlines()
    assert len(lines) < 50
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert ["s32", "31 devices", "31.0 KiB", "31.0 KiB"] in cells
    assert "86 on each of 31 servers (s2, s3, s4 … s32), 212 on s1" in printed.getvalue()


def test_servers_with_the_same_changes_are_counted_and_not_all_named() -> None:
    change = Change(action="add", collection="queues", key="nic0 1", before=None, after="{}")
    show, printed = shown()
    lease = LeaseState(phase="idle", generation=0)
    preview = Previewed(changes=(change,) * 3, refusals=(), lease=lease)
    show.changes(dict.fromkeys(MANY, preview))
    assert "s1, s2, s3 … s32: 3 to add on each of 32 servers\n  + 3 queues" in printed.getvalue()


def test_idle_devices_and_inputs_of_micro_batches_are_told_in_a_line() -> None:
    made = placement(plan(), ())
    names = [f"input_{k}_m{m}" for m in range(16) for k in range(2)]
    homes = {name: f"s{at // 2 + 1}/0" for at, name in enumerate(names)}
    made = made.model_copy(
        update={
            "cluster": cluster(32), "messages": (),
            "operators": {"loss": "s1/0", **homes},
        }
    )  # fmt: skip
    lines = where_data_is(made, {"loss": "loss", "inputs": names})
    assert lines[1] == (
        "the batch is read where its inputs are: 16 parts of input_0, 16 parts of input_1 on "
        "s1/0, s2/0, s3/0 … s16/0; 0 B of it are sent on"
    )
    table = placement_table(made)
    assert table.row_count == 16
    assert table.caption == "16 further devices run nothing: s17/0, s18/0, s19/0 … s32/0"


def test_few_names_are_all_named() -> None:
    assert few_names(MANY[:8]) == "s1, s2, s3, s4, s5, s6, s7, s8"
    assert counts_in_words({"s1": 3, "s2": 4}) == "s1 3, s2 4"
    assert counts_in_words({name: k for k, name in enumerate(MANY)}) == (
        "0 to 31 on each of 32 servers"
    )
