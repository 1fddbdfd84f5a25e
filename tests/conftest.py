"""Lets tests import the helpers that lie beside them."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("", "optimizer", "agent", "controller", "end_to_end", "kernel", "provision"):
    sys.path.append(str(Path(__file__).parent / folder))
