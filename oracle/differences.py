"""Says what differs between two snapshots of one server, one sentence for each difference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from placewire.oracle.snapshot import VERSION


class NotComparableError(ValueError):
    """A document is no snapshot of this version. The message says which, and what to do."""


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], without: Collection[str] = ()
) -> list[str]:
    """What, where, before and now, for everything that is not the same in both snapshots.

    without: kinds of facts that are not compared, for example "filter". Raises NotComparableError.
    """
    former, present = _facts(before, "the former"), _facts(now, "the present")
    return [
        sentence
        for what in sorted(former.keys() | present.keys())
        if what not in without
        for sentence in _of_kind(what, former.get(what, {}), present.get(what, {}))
    ]


def _facts(snapshot: Mapping[str, Any], which: str) -> Mapping[str, Mapping[str, Any]]:
    facts = snapshot.get("facts") if isinstance(snapshot, Mapping) else None
    if not isinstance(facts, Mapping) or snapshot.get("version") != VERSION:
        raise NotComparableError(
            f"{which} snapshot is none of version {VERSION}: take both with one release of "
            "Placewire"
        )
    for what, found in facts.items():
        if not isinstance(found, Mapping):
            raise NotComparableError(
                f"{which} snapshot is damaged, its {what!r} is no table: take it anew, or use a "
                "copy of it"
            )
    return facts


def _of_kind(what: str, former: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[str]:
    for where in sorted(former.keys() | present.keys()):
        if where not in present:
            yield f"{what} {where}: was {_text(former[where])}, is gone"
        elif where not in former:
            yield f"{what} {where}: was not there, is {_text(present[where])}"
        elif former[where] != present[where]:
            yield f"{what} {where}: {', '.join(_changes(former[where], present[where]))}"


def _changes(former: Any, present: Any) -> Iterator[str]:
    if not (isinstance(former, Mapping) and isinstance(present, Mapping)):
        yield f"was {_text(former)}, is {_text(present)}"
        return
    for name in sorted(former.keys() | present.keys()):
        before, now = former.get(name), present.get(name)
        if before != now:
            yield f"{name} was {_text(before)}, is {_text(now)}"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items()) or "there"
    if isinstance(value, list):
        return " and ".join(_text(one) for one in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value is None else str(value) or "empty"
