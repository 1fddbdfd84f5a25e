"""Shows what would change on servers, a line for each change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.text import Text

from placewire.agent.contract.messages import Previewed
from placewire.agent.contract.state import Change
from placewire.optimizer.quantities import format_bits_per_second, format_bytes
from placewire.visible import visible

_SINGULAR = {"addresses": "address"}
_MARKS = {"add": ("+", "green"), "replace": ("~", "yellow"), "remove": ("-", "red")}
# Longer lists of changes are only counted, by collection.
_FULL_DIFF_LINES = 60
_LARGEST_NUMBER = 2**63


def previewed_lines(previewed: Mapping[str, Previewed], *, every_change: bool) -> list[Text]:
    """Returns the changes server by server. every_change: lists each change, unless a server has
    more than _FULL_DIFF_LINES; else changes are counted by collection."""
    lines = []
    for server, preview in previewed.items():
        count = Counter[str](change.action for change in preview.changes)
        summary = ", ".join(f"{count[a]} to {a}" for a in _MARKS if count[a]) or "0 changes"
        lines.append(Text.assemble((server, "bold"), f": {summary}"))
        full = every_change and len(preview.changes) <= _FULL_DIFF_LINES
        lines += diff_lines(preview.changes) if full else _by_collection(preview.changes)
    return lines


def diff_lines(changes: Sequence[Change]) -> list[Text]:
    """One line a change: + added, ~ replaced, - removed."""
    lines = []
    for change in changes:
        mark, colour = _MARKS[change.action]
        kind = _SINGULAR.get(change.collection, change.collection[:-1])
        detail = _detail(change.before if change.action == "remove" else change.after, change.key)
        text = visible(f"  {mark} {kind:<10} {change.key}  {detail}")
        lines.append(Text(text.rstrip()[:100], style=colour))
    return lines


def _detail(value: str | None, key: str) -> str:
    """Writes those fields of an entry that are not in its key; of what is no entry, its text."""
    if value is None:
        return ""
    try:
        fields = json.loads(value)
        if not isinstance(fields, dict):
            return value
        in_key = key.split()
        return ", ".join(
            _word(name, field)
            for name, field in fields.items()
            if field is not None and str(field) not in in_key
        )
    except (ValueError, RecursionError):
        return value


def _word(name: str, field: object) -> str:
    # An agent may say anything in place of a number.
    if isinstance(field, int | float) and abs(field) < _LARGEST_NUMBER:
        if name.endswith("_bits_per_second"):
            return f"{name.removesuffix('_bits_per_second')} {format_bits_per_second(field)}"
        if name.endswith("_bits"):
            return f"{name.removesuffix('_bits')} {format_bytes(field / 8)}"
    return f"{name} {field}"


def _by_collection(changes: Sequence[Change]) -> list[Text]:
    counts = Counter((change.action, change.collection) for change in changes)
    return [
        Text(f"  {_MARKS[action][0]} {count} {collection}", style=_MARKS[action][1])
        for (action, collection), count in counts.items()
    ]
