"""Shows what would change on servers: a line for each change, or how many there are."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.text import Text

from placewire.agent.contract.messages import Previewed
from placewire.agent.contract.state import Change
from placewire.controller.few_names import MOST_NAMES, few_names
from placewire.optimizer.quantities import format_bits_per_second, format_bytes
from placewire.visible import visible

_SINGULAR = {"addresses": "address"}
_MARKS = {"add": ("+", "green"), "replace": ("~", "yellow"), "remove": ("-", "red")}
# So few changes, of all servers together, are listed in any case.
_FEW = 20
_WIDTH = 98
_LARGEST_NUMBER = 2**63


def previewed_lines(previewed: Mapping[str, Previewed], *, every_change: bool) -> list[Text]:
    changes = {server: preview.changes for server, preview in previewed.items()}
    return lines_of_servers(changes, every_change=every_change)


def lines_of_servers(changes: Mapping[str, Sequence[Change]], *, every_change: bool) -> list[Text]:
    """Returns the changes server by server. every_change: lists each change; else they are counted,
    and servers that have the same share their lines, unless there are few."""
    if every_change or sum(map(len, changes.values())) <= _FEW:
        return [
            line
            for server, some in changes.items()
            for line in (_heading(server, some), *diff_lines(some))
        ]
    alike: dict[tuple[tuple[tuple[str, str], int], ...], list[str]] = {}
    for server, some in changes.items():
        counts = Counter((change.action, change.collection) for change in some)
        alike.setdefault(tuple(counts.items()), []).append(server)
    lines = []
    for servers in alike.values():
        some = changes[servers[0]]
        lines += [_heading(few_names(servers), some, len(servers)), *_counted_lines(some)]
    return [*lines, Text("--full shows each change", style="dim")]


def _heading(server: str, changes: Sequence[Change], servers: int = 1) -> Text:
    count = Counter[str](change.action for change in changes)
    summary = ", ".join(f"{count[a]} to {a}" for a in _MARKS if count[a]) or "0 changes"
    each = f" on each of {servers} servers" if servers > MOST_NAMES else " on each"
    each = each if servers > 1 else ""
    return Text.assemble((server, "bold"), f": {summary}{each}")


def _counted_lines(changes: Sequence[Change]) -> list[Text]:
    """+ 2 bridges, 2 addresses …"""
    lines = []
    for action, (mark, colour) in _MARKS.items():
        count = Counter(change.collection for change in changes if change.action == action)
        words = ", ".join(f"{n} {_singular(kind) if n == 1 else kind}" for kind, n in count.items())
        if words:
            made = textwrap.wrap(
                words, _WIDTH, initial_indent=f"  {mark} ", subsequent_indent="    "
            )
            lines += [Text(visible(line), style=colour) for line in made]
    return lines


def _singular(collection: str) -> str:
    return _SINGULAR.get(collection, collection[:-1])


def diff_lines(changes: Sequence[Change]) -> list[Text]:
    """One line a change: + added, ~ replaced, - removed."""
    lines = []
    for change in changes:
        mark, colour = _MARKS[change.action]
        kind = _singular(change.collection)
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
