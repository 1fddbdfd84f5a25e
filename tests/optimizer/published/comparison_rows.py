"""Rows of a comparison."""

from __future__ import annotations

from typing import Any

from placewire.optimizer.published.comparison.rows import Row

ROW = Row(
    key="k", graph="g", operators=3, cluster="c", engine="heft", reduction="auto",
    model="contended", seed=0, gap=0.0, solver="auto", limit_seconds=10.0, outcome="placed",
    step_seconds=2.0, contended_seconds=2.0, bound_seconds=1.0, single_device_seconds=3.0,
    fits=True, checked=True, devices_used=2, search_seconds=0.5,
)  # fmt: skip


def row(**changed: Any) -> Row:
    return ROW.model_copy(update=changed)
