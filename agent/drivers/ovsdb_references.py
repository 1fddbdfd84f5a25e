"""Finds in Open vSwitch's schema what may refer to a bridge, and to what a bridge may refer.

Others can use all of it on a bridge of ours, also what a later version of Open vSwitch adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# Of bridges: that is ours. Of the whole switch: that says which bridges there are.
_OURS = ("ports",)
_OF_SWITCH = "Open_vSwitch"
# A column of one of these is enough to know that a row is there, and does not change by itself.
_CALM = ("name", "target", "targets", "external_ids")


class References(NamedTuple):
    """features: (column of Bridge, table that it refers to). referring: (table, column that refers
    to bridges)."""

    features: tuple[tuple[str, str], ...] = ()
    referring: tuple[tuple[str, str], ...] = ()


def references_of(schema: Mapping[str, Any]) -> References:
    """schema: as ovsdb-server tells it."""
    found = [
        (table, column, to)
        for table, described in schema["tables"].items()
        for column, of_column in described["columns"].items()
        for to in _referred(of_column["type"])
    ]
    return References(
        features=tuple((c, to) for table, c, to in found if table == "Bridge" and c not in _OURS),
        referring=tuple((t, c) for t, c, to in found if to == "Bridge" and t != _OF_SWITCH),
    )


def columns_of(references: References, schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """The columns that are needed to see these rows, by table."""
    columns: dict[str, list[str]] = {"Bridge": []}
    for column, table in references.features:
        columns["Bridge"].append(column)
        there = schema["tables"][table]["columns"]
        columns.setdefault(table, []).append(next((c for c in _CALM if c in there), min(there)))
    for table, column in references.referring:
        columns.setdefault(table, []).append(column)
    return columns


def refers_to(value: Any, row: Any) -> bool:
    """value: of a column, as the IDL has it."""
    values: Sequence[Any]
    if isinstance(value, dict):
        values = [*value.keys(), *value.values()]
    else:
        values = value if isinstance(value, list) else [value]
    return any(getattr(one, "uuid", None) == row.uuid for one in values)


def _referred(kind: Any) -> Iterator[str]:
    """The tables to which a column of this type refers and keeps the row that it refers to."""
    for part in ("key", "value") if isinstance(kind, dict) else ():
        base = kind.get(part)
        if isinstance(base, dict) and "refTable" in base and base.get("refType") != "weak":
            yield base["refTable"]
