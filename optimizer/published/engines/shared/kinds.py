"""Constructors of Engine objects, with the fields that engines of one kind have in common."""

from __future__ import annotations

from functools import partial

from placewire.optimizer.engines.engine import Engine

list_engine = partial(
    Engine, decides="devices, order", sees="each transfer alone",
    memory="static sum: a device without room is passed over", unlike="yes", reduction="none",
)  # fmt: skip
cluster_engine = partial(list_engine, decides="devices", unlike="mean times")
filling_engine = partial(
    Engine, decides="devices, order", sees="nothing",
    memory="static sum; best effort where all are full", unlike="yes",
)  # fmt: skip
search_engine = partial(
    Engine, decides="devices", sees="the problem's own model", memory="the simulated peak, charged",
    unlike="yes", reduction="none",
)  # fmt: skip
