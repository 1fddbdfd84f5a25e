"""Presets: published tables and figures, computed again for our captures; one file per paper.

Where a paper draws a figure and its text does not state it, the paper's side is `-`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewire.optimizer.published.comparison.presets.preset import Preset

# The module of this folder, and its function, that makes each preset.
PRESETS: Mapping[str, str] = {
    "thesis-table-5.1": "thesis:table_5_1", "thesis-table-5.2": "thesis:table_5_2",
    "thesis-figure-4.3": "thesis:figure_4_3", "thesis-figure-4.5": "thesis:figure_4_5",
    "thesis-figure-5.2": "thesis:figure_5_2", "thesis-figure-5.3": "thesis:figure_5_3",
    "thesis-figure-5.4": "thesis:figure_5_4",
    "icc-table-1": "icc:table_1", "icc-figure-5": "icc:figure_5", "icc-figure-6": "icc:figure_6",
    "moirai-table-v": "moirai:table_v", "moirai-figure-10": "moirai:figure_10",
    "hsdag-table-2": "hsdag:table_2", "hsdag-table-3": "hsdag:table_3",
    "celeritas-table-2": "celeritas:table_2", "celeritas-table-3": "celeritas:table_3",
    "celeritas-table-4": "celeritas:table_4", "celeritas-table-5": "celeritas:table_5",
    "celeritas-figure-5": "celeritas:figure_5", "celeritas-figure-6": "celeritas:figure_6",
}  # fmt: skip


def load_preset(name: str) -> Preset:
    module, function = PRESETS[name].split(":")
    made: Preset = getattr(importlib.import_module(f"{__name__}.{module}"), function)()
    return made
