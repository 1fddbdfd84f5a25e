"""Shows the figures of a preset, the paper's beside ours, as a table in text and as rows."""

from __future__ import annotations

import csv
import io
import textwrap

from placewire.optimizer.published.comparison.presets.preset import Preset
from placewire.optimizer.published.comparison.reasons import Reasons
from placewire.optimizer.published.comparison.reproducing import Beside
from placewire.optimizer.published.comparison.tables import COLUMNS, aligned


def beside_lines(preset: Preset, found: list[Beside]) -> list[str]:
    """A table of at most 100 columns; under it every reason once, in the words of the first figure
    that it stands for."""
    reasons = Reasons()
    cells = [("model", "figure", "paper", "ours")]
    for one in found:
        ours = f"none ({reasons.number(one.why)})" if one.why else one.ours
        cells.append((one.model, one.what, one.paper, ours))
    lines = textwrap.wrap(preset.title, COLUMNS)
    for line in aligned(cells, 2):
        lines += textwrap.wrap(line, COLUMNS, drop_whitespace=False)
    if reasons.lines:
        lines.append("why some figures are missing (like reasons are listed once):")
    for reason in reasons.lines:
        lines += textwrap.wrap(reason, COLUMNS, subsequent_indent="    ")
    lines.append("how the settings differ:")
    for words in preset.differs:
        lines += textwrap.wrap(f"- {words}", COLUMNS, subsequent_indent="  ")
    return lines


def beside_csv(found: list[Beside]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "figure", "paper", "ours", "why"])
    writer.writerows([[one.model, one.what, one.paper, one.ours, one.why] for one in found])
    return text.getvalue()
