"""Makes one HTML page of a run's report: no script in it, and no request leaves it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment

from placewire.controller.page import nic_panels, nic_strips, step_chart, step_picture
from placewire.controller.page.byte_map import byte_map
from placewire.controller.page.changes import changes_of_servers
from placewire.controller.page.matrix import MOST_WRITTEN
from placewire.controller.page.rate_map import rate_map
from placewire.controller.page.step_picture import NoPicture, StepPicture
from placewire.controller.page.templates import templates
from placewire.controller.records.report import NOT_AS_BEFORE, RunReport
from placewire.optimizer.explain.parallelism import layers_words
from placewire.optimizer.graph.json_file import replace_file
from placewire.optimizer.graph.named_output import open_stream
from placewire.optimizer.quantities import format_bits_per_second, format_bytes, format_seconds
from placewire.visible import visible_lines

_TEMPLATE = "page.html.j2"
# Longer tables are cut; run.json has each row.
_MOST_ROWS = 40
# The names above columns are turned where there are more devices than this.
_MOST_COLUMNS = 10


def report_page(report: RunReport) -> str:
    """Reads the files of the run that the report names; where they do not fit it any more, the page
    says so in place of what they would show."""
    step, why_no_step = _step(report)
    use = report.nic_use
    many = use is not None and len({row.server for row in use.nics}) > MOST_WRITTEN
    return _templates().get_template(_TEMPLATE).render(
        report=report,
        version=version("placewire"),
        ended=_ended(report),
        outcome=_outcome(report),
        network=_network(report),
        bars=_bars(report),
        rates=rate_map(report.links),
        nic_use=None if use is None or many else nic_panels.nic_panels(use),
        nic_strips=nic_strips.nic_strips(use) if use is not None and many else None,
        strip_width=nic_strips.WIDTH,
        steps=step_chart.step_chart(report),
        values=step_chart.value_charts(report),
        step=step,
        why_no_step=why_no_step,
        traffic=sorted(report.traffic, key=lambda row: -row.sent_bytes),
        bytes=byte_map(report.traffic, report.devices)
        if len(report.traffic) > _MOST_ROWS
        else None,
        memory=_memory_of_many(report.peak_memory_bytes),
        changes=changes_of_servers(report),
        most_rows=_MOST_ROWS,
        most_columns=_MOST_COLUMNS,
        panel=(nic_panels.WIDTH, nic_panels.HEIGHT),
        chart=(step_chart.WIDTH, step_chart.HEIGHT),
        lane_width=step_picture.WIDTH,
    )  # fmt: skip


def write_page(report: RunReport, out: Path) -> bool:
    """Returns whether it is a file, which is replaced as a whole, and no stream. Raises OSError."""
    made = report_page(report).encode()
    if (stream := open_stream(out)) is None:
        replace_file(out, made)
        return True
    with stream:
        stream.write(made)
    return False


def _templates() -> Environment:
    made = templates(Path(__file__).parent)
    made.filters.update(
        bits=format_bits_per_second,
        size=format_bytes,
        seconds=format_seconds,
        layers=layers_words,
    )
    return made


def _step(report: RunReport) -> tuple[StepPicture | None, str]:
    if "graph" not in report.files:
        return None, ""
    try:
        return step_picture.step_picture(report), ""
    except NoPicture as error:
        return None, str(error)


def _ended(report: RunReport) -> str:
    if report.ended_unix_seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(report.ended_unix_seconds))


def _outcome(report: RunReport) -> list[str]:
    """What the run came to, in lines."""
    if (failure := report.failure) is not None:
        where = f"{failure.server}: " if failure.server else ""
        lines = visible_lines(f"The run failed: {where}{failure.what}").splitlines()
        return [*lines, failure.remedy] if failure.remedy else lines
    if not report.operators:
        return ["The script came to its end."] if report.rails else ["The network was shaped."]
    if report.measured_step_seconds is None or report.prediction_error is None:
        return [f"{report.steps_run} steps were trained; their time is not known."]
    each = "on average" if report.buckets else "each"
    than = "longer" if report.prediction_error > 0 else "shorter"
    return [
        f"{report.steps_run} steps of {format_seconds(report.measured_step_seconds)} {each}, "
        f"{abs(report.prediction_error):.1%} {than} than predicted."
    ]


def _network(report: RunReport) -> str:
    """What became of the network."""
    if report.network == "kept":
        return "The network stays as it was made, until somebody changes it."
    if report.network == "not restored":
        return "The network could not be put back on every server: see the failure above."
    if any(note.startswith(NOT_AS_BEFORE) for note in report.notes):
        return "The network is back on its former state, but for what the notes say."
    return "The network is back on its former state, which every server read back."


def _bars(report: RunReport) -> list[tuple[str, str, str, float]]:
    """(name, its step in words, what it is, percent of the longest) of each step that is known."""
    median = "the median of all steps but the first"
    if report.buckets:
        median = "the mean of the buckets' medians, each weighted by its steps"
    known = [
        ("one device", report.single_device_seconds, "predicted"),
        ("measured", report.measured_step_seconds, median),
        ("predicted", report.predicted_step_seconds, "simulated, with every message"),
        ("bound", report.bound_seconds, "no placement can be faster"),
    ]
    bars = [(name, seconds, what) for name, seconds, what in known if seconds is not None]
    longest = max((seconds for _, seconds, _ in bars), default=0.0) or 1.0
    return [
        (name, format_seconds(seconds), what, round(100 * seconds / longest, 1))
        for name, seconds, what in bars
    ]


def _memory_of_many(peaks: Mapping[str, int]) -> str:
    """Of few "", because each is shown."""
    if len(peaks) <= MOST_WRITTEN:
        return ""
    by_size = sorted(peaks.items(), key=lambda item: item[1])
    (least_at, least), (_, median), (most_at, most) = (
        by_size[0],
        by_size[len(peaks) // 2],
        by_size[-1],
    )
    return (
        f"{len(peaks)} of them: from {format_bytes(least)} ({least_at}) to {format_bytes(most)} "
        f"({most_at}), the median {format_bytes(median)}; run.json has each."
    )
