"""Tells which of Placewire's files a document is, where another one was expected."""

from __future__ import annotations

from typing import Any

GRAPH, PLACEMENT, PLAN = "a graph file", "a placement", "a plan"
# Keys that no other file has together, what it is, and where it comes from.
_KINDS = (
    ({"operators", "tensors"}, GRAPH, "`optimizer capture` and `profile` write it"),
    ({"operators", "order", "messages"}, PLACEMENT, "`optimizer solve --out` writes it"),
    ({"cluster", "job"}, PLAN, "`controller init` writes one"),
    ({"plan_name", "plan_digest"}, "the report of a run", "`controller apply --out` writes it"),
    ({"traceEvents"}, "a trace", "`job.trace` asks for it"),
    ({"servers"}, "a cluster", "a plan has one under `cluster`"),
)


def other_kind(document: Any, expected: str) -> str | None:
    """Says what the document is instead of `expected`; None where it may be that, or is unknown."""
    if not isinstance(document, dict):
        return None
    for keys, kind, origin in _KINDS:
        if keys <= document.keys():
            return None if kind == expected else f"it is {kind} ({origin}), not {expected}"
    return None
