"""Shows past decisions and runs, a line for each."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import ValidationError
from rich.table import Table

from placewire.controller.records.journal import Decision, Run
from placewire.controller.records.phase_words import phase_in_words
from placewire.controller.records.report import RunReport
from placewire.controller.show.console import table
from placewire.optimizer.quantities import format_seconds


def decisions_table(decisions: Sequence[Decision]) -> Table:
    made = table(
        "Decisions, the latest last",
        words=("", "begun", "plan", "decision", "generation of each server", "became"),
    )
    for one in decisions:
        generations = ", ".join(f"{server} {n}" for server, n in one.generations.items())
        became = phase_in_words(one.phases[-1].name) if one.phases else ""
        begun = one.phases[0].unix_seconds if one.phases else 0.0
        made.add_row(
            str(one.id), _when(begun), one.plan_name, one.plan_digest[:12], generations, became
        )
    return made


def runs_table(runs: Sequence[Run]) -> Table:
    made = table(
        "Runs, the latest last",
        words=("ended", "plan", "program", "sharing"),
        figures=("devices", "steps", "predicted", "measured", "off by", ""),
    )
    made.padding = (0, 0)  # So many columns leave room for words alone.
    for run in runs:
        try:
            report = RunReport.model_validate_json(run.report)
        except ValidationError:
            made.add_row(_when(run.unix_seconds), run.plan_name, *[""] * 7, "other version")
            continue
        predicted = report.predicted_step_seconds
        measured, error = report.measured_step_seconds, report.prediction_error
        made.add_row(
            _when(run.unix_seconds), run.plan_name,
            "" if report.program is None else report.program.short_name, report.sharing,
            # Of a script nothing is placed, and no step is known.
            str(len(report.devices) or ""), "" if report.rails else str(report.steps_run),
            "" if predicted is None else format_seconds(predicted),
            "" if measured is None else format_seconds(measured),
            "" if error is None else f"{error:+.1%}",
            "failed" if report.failure else "done",
        )  # fmt: skip
    return made


def _when(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_seconds))
