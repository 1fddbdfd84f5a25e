"""Shows what installing or removing the agent did on each server."""

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
    """Returns None for progress that only the program uses."""
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
    """check: whether changes were only looked for, not made."""
    made = table("Servers", words=("server", "would change" if check else "changed", "result"))
    made.show_lines = True
    for server, outcome in found.items():
        made.add_row(Text(server), _changes(outcome), _result(outcome))
    return made


def _changes(outcome: Outcome) -> Text:
    """Writes a line for each stage."""
    whats: dict[str, dict[str, None]] = {}
    for change in outcome.changes:
        whats.setdefault(change.stage, {})[change.what] = None
    return Text("\n".join(f"{s}: {'; '.join(some)}" for s, some in whats.items()) or "nothing")


def _result(outcome: Outcome) -> Text:
    text = Text("ok", style="green")
    if (failure := outcome.failure) is not None:
        text = Text("failed", style="bold red")
        text.append(f"\n{failure.task}: {failure.reason}\n> {failure.remedy}", style="default")
    for note in outcome.notes:
        text.append(f"\n{note}", style="yellow")
    return text
