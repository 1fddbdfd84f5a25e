"""What came of installing or removing the agent, server by server."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from placewire.controller.provision.progress import (
    Began,
    Certificate,
    Changed,
    Failed,
    Outcome,
    Progress,
)
from placewire.controller.show.console import table


def progress_line(told: Progress) -> str | None:
    """None where it is for the program alone."""
    if isinstance(told, Certificate):
        return None
    if isinstance(told, Began):
        return told.stage
    if isinstance(told, Changed):
        return f"  {told.server}: {told.stage}: {told.what}"
    if isinstance(told, Failed):
        return f"  {told.server}: FAILED: {told.task}: {told.reason}"
    return f"  {told.server}: {told.what}"


def outcome_table(found: Mapping[str, Outcome], *, check: bool) -> Table:
    """check: nothing was changed, only looked at."""
    made = table("Servers", words=("server", "would change" if check else "changed", "result"))
    made.show_lines = True
    for server, outcome in found.items():
        made.add_row(Text(server), _changes(outcome), _result(outcome))
    return made


def _changes(outcome: Outcome) -> Text:
    """A line for each stage."""
    stages = dict.fromkeys(change.stage for change in outcome.changes)
    lines = []
    for stage in stages:
        whats = dict.fromkeys(c.what for c in outcome.changes if c.stage == stage)
        lines.append(f"{stage}: {'; '.join(whats)}")
    return Text("\n".join(lines) or "nothing")


def _result(outcome: Outcome) -> Text:
    failure = outcome.failure
    text = Text("ok", style="green")
    if failure is not None:
        text = Text("failed", style="bold red")
        text.append(f"\n{failure.task}: {failure.reason}", style="default")
        text.append(f"\n> {failure.remedy}", style="default")
    for note in outcome.notes:
        text.append(f"\n{note}", style="yellow")
    return text
