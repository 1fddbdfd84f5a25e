"""Shows a run's report in tables: bytes of a step, use of NICs, and the step's time."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from placewire.controller.records.of_traffic import TrafficRow
from placewire.controller.records.report import RailRow, RunReport
from placewire.controller.show.console import table
from placewire.optimizer.quantities import format_bytes, format_seconds

# More rows than these are summed up by what sends.
_MOST_ROWS = 40


def traffic_table(report: RunReport, *, every_row: bool = True) -> Table:
    if not every_row and len(report.traffic) > _MOST_ROWS:
        return _traffic_by_source(report)
    made = table(
        "Bytes of a step, planned and sent",
        words=("from", "to", "rail"),
        figures=("planned", "sent"),
    )
    for row in report.traffic:
        made.add_row(
            row.source, row.destination, row.rail,
            format_bytes(row.planned_bytes), format_bytes(row.sent_bytes),
        )  # fmt: skip
    return made


def _traffic_by_source(report: RunReport) -> Table:
    by_source: dict[str, list[TrafficRow]] = {}
    for row in report.traffic:
        by_source.setdefault(row.source, []).append(row)
    made = table(
        "Bytes of a step, planned and sent, by the device that sends",
        words=("from",),
        figures=("to", "planned", "sent"),
    )
    for source, rows in by_source.items():
        destinations = len({row.destination for row in rows})
        made.add_row(
            source, f"{destinations} device{'s' if destinations > 1 else ''}",
            format_bytes(sum(row.planned_bytes for row in rows)),
            format_bytes(sum(row.sent_bytes for row in rows)),
        )  # fmt: skip
    return made


def rails_table(report: RunReport) -> Table:
    made = table(
        "What each NIC sent, and its part of that",
        words=("server", "NIC", "rail"),
        figures=("sent", "part", "planned", ""),
    )
    for row in report.rails:
        made.add_row(
            row.server, row.nic, row.rail, format_bytes(row.sent_bytes),
            f"{row.share:.0%}", f"{row.planned_share:.0%}",
            _judgement(row),
        )  # fmt: skip
    return made


def _judgement(row: RailRow) -> Text:
    if row.within_tolerance is None:
        return Text("too little sent" if row.sent_bytes else "nothing sent", style="yellow")
    return Text("as planned") if row.within_tolerance else Text("off", style="bold red")


def buckets_table(report: RunReport) -> Table:
    made = table(
        "Buckets: the shapes that batches had",
        words=("bucket",),
        figures=("steps", "bound", "predicted step", "measured step"),
    )
    for row in report.buckets:
        measured = row.measured_step_seconds
        made.add_row(
            row.name, str(row.steps), format_seconds(row.bound_seconds),
            format_seconds(row.predicted_step_seconds),
            "" if measured is None else format_seconds(measured),
        )  # fmt: skip
    return made


def steps_table(report: RunReport) -> Table:
    made = table(f"{report.plan_name}: predicted and measured", words=("", "step", "what"))
    if report.bound_seconds is not None:
        made.add_row("bound", format_seconds(report.bound_seconds), "no placement can be faster")
    if report.predicted_step_seconds is not None:
        devices = "1 device" if len(report.devices) == 1 else f"{len(report.devices)} devices"
        made.add_row(
            "predicted",
            format_seconds(report.predicted_step_seconds),
            f"{devices}, {report.sharing}, gap {report.gap or 0.0:.1%}",
        )
    if report.measured_step_seconds is not None and report.prediction_error is not None:
        steps = report.steps_run
        made.add_row(
            "measured",
            format_seconds(report.measured_step_seconds),
            f"{_measured_on(steps, report)}, {report.prediction_error:+.1%} off",
        )
    elif report.predicted_step_seconds is not None:
        unknown = "not known, see the notes" if report.steps_run else "no step was run"
        made.add_row("measured", "", unknown)
    if report.single_device_seconds is not None:
        made.add_row("one device", format_seconds(report.single_device_seconds), "predicted")
    return made


def _measured_on(steps: int, report: RunReport) -> str:
    """steps: how many the run had; its first one warms up, and counts only where it is alone."""
    if steps == 1:
        return "1 step, the first, which warms up"
    if report.buckets:
        return f"mean of the buckets' medians over {steps} steps"
    some = f", of which each {report.steps_each}th counts" if report.steps_each > 1 else ""
    return f"median of {steps - 1} step{'s' if steps > 2 else ''}{some}"
