"""The lab that this process is in, as its environment says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Every program of a lab has its name, and the controller also its folder.
LAB_VARIABLE = "PLACEWIRE_LAB"
STATE_VARIABLE = "PLACEWIRE_STATE_DIR"


@dataclass(frozen=True)
class OwnLab:
    """directory: where the lab's files are; each server has a folder there."""

    name: str
    directory: Path


def own_lab() -> OwnLab | None:
    """None where this process is no controller in a lab."""
    name, state = os.environ.get(LAB_VARIABLE), os.environ.get(STATE_VARIABLE)
    return None if name is None or state is None else OwnLab(name, Path(state).parent)
