"""Published tables and figures, asked again of our captures: one file of figures per paper.

What a paper's drawing shows and its text does not say is given as `-`, with ours beside it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewire.optimizer.published.comparison.presets.preset import Preset

_HERE = "placewire.optimizer.published.comparison.presets"

# module:function of each.
PRESETS: Mapping[str, str] = {
    "thesis-table-5.1": f"{_HERE}.thesis:table_5_1",
    "thesis-table-5.2": f"{_HERE}.thesis:table_5_2",
    "thesis-figure-4.3": f"{_HERE}.thesis:figure_4_3",
    "thesis-figure-4.5": f"{_HERE}.thesis:figure_4_5",
    "thesis-figure-5.2": f"{_HERE}.thesis:figure_5_2",
    "thesis-figure-5.3": f"{_HERE}.thesis:figure_5_3",
    "thesis-figure-5.4": f"{_HERE}.thesis:figure_5_4",
    "icc-table-1": f"{_HERE}.icc:table_1",
    "icc-figure-5": f"{_HERE}.icc:figure_5",
    "icc-figure-6": f"{_HERE}.icc:figure_6",
    "moirai-table-v": f"{_HERE}.moirai:table_v",
    "moirai-figure-10": f"{_HERE}.moirai:figure_10",
    "hsdag-table-2": f"{_HERE}.hsdag:table_2",
    "hsdag-table-3": f"{_HERE}.hsdag:table_3",
    "celeritas-table-2": f"{_HERE}.celeritas:table_2",
    "celeritas-table-3": f"{_HERE}.celeritas:table_3",
    "celeritas-table-4": f"{_HERE}.celeritas:table_4",
    "celeritas-table-5": f"{_HERE}.celeritas:table_5",
}


def load_preset(name: str) -> Preset:
    module, function = PRESETS[name].split(":")
    made: Preset = getattr(importlib.import_module(module), function)()
    return made
