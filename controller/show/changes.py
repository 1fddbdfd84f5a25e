"""The difference that a server would be changed by: one line a change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.text import Text

from placewire.agent.contract.messages import Previewed
from placewire.agent.contract.state import Change
from placewire.optimizer.quantities import format_bits_per_second, format_bytes

_SINGULAR = {"addresses": "address"}
_MARKS = {"add": ("+", "green"), "replace": ("~", "yellow"), "remove": ("-", "red")}
# A server's diff is shown in full up to here; then by collection, unless asked for all of it.
_FULL_DIFF_LINES = 60


def previewed_lines(previewed: Mapping[str, Previewed], *, every_change: bool) -> list[Text]:
    """Server by server; every_change: each of them, where they are not too many to be read."""
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
        value = change.after if change.action != "remove" else change.before
        text = (
            f"  {mark} {_SINGULAR.get(change.collection, change.collection[:-1]):<10} {change.key}"
        )
        detail = _detail(value, change.key)
        lines.append(Text(f"{text}  {detail}".rstrip()[:100], style=colour))
    return lines


def _detail(value: str | None, key: str) -> str:
    """The entry's fields that its key does not already say."""
    if value is None:
        return ""
    try:
        fields = json.loads(value)
    except ValueError:
        return value
    words = []
    for name, field in fields.items():
        if field is None or str(field) in key.split():
            continue
        if name.endswith("_bits_per_second"):
            words.append(f"{name.removesuffix('_bits_per_second')} {format_bits_per_second(field)}")
        elif name.endswith("_bits"):
            words.append(f"{name.removesuffix('_bits')} {format_bytes(field / 8)}")
        else:
            words.append(f"{name} {field}")
    return ", ".join(words)


def _by_collection(changes: Sequence[Change]) -> list[Text]:
    counts = Counter((change.action, change.collection) for change in changes)
    return [
        Text(f"  {_MARKS[action][0]} {count} {collection}", style=_MARKS[action][1])
        for (action, collection), count in counts.items()
    ]
