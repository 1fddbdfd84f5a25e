"""Starts ranks on this machine's own network, as children of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from placewire.controller.launch.launcher import RANK_PROGRAM
from placewire.controller.launch.local import LocalRank, start_rank
from placewire.job.contract.specification import ProgramSpec


class HereStarter:
    """Runs every rank here, in this folder, whatever server its device is on."""

    async def start(self, spec: ProgramSpec) -> LocalRank:
        return await start_rank(
            spec,
            lambda file: [sys.executable, *RANK_PROGRAM, file],
            workdir=Path.cwd(),
            environment={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
