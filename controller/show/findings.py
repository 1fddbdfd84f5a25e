"""Shows what stands in the way of a plan, the worst first; what many servers share stands once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from placewire.agent.contract.diagnosis import Finding
from placewire.controller.show.console import table

# The worst first.
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def findings_table(found: Mapping[str, Sequence[Finding]]) -> Table:
    made = table("Findings", words=("server", "", "where", "what, why, and what to do"))
    made.show_lines = True
    where_found: dict[Finding, list[str]] = {}
    for server, some in found.items():
        for one in some:
            where_found.setdefault(one, []).append(server)
    for one in sorted(where_found, key=lambda each: list(_STYLES).index(each.severity)):
        text = Text(one.what)
        text.append(f"\n{one.why}", style="dim")
        if one.remedy:
            text.append(f"\n> {one.remedy}")
        severity = Text(one.severity, style=_STYLES[one.severity])
        made.add_row(Text("\n".join(where_found[one])), severity, Text(one.where), text)
    return made
