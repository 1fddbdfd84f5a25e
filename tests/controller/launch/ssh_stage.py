"""Ranks of a program's source, launched over SSH."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewire.controller.launch.ranks import run_ranks
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import Surroundings
from placewire.job.contract.specification import RankEvent, RankSpec
from tests.controller.launch.rank_programs import PRELUDE
from tests.controller.launch.sshd import Keys
from tests.paths import ROOT

ADDRESS = "127.0.0.1"

PRIVATE = "a secret of the job"


def around(**changes: Any) -> Surroundings:
    usual = Surroundings(sys.executable, str(ROOT), {"PRIVATE": PRIVATE})
    return replace(usual, **changes)


def launcher_of(login: Login, *program: str, **changes: Any) -> SshLauncher:
    more: dict[str, Any] = {"program": program} if program else {}
    servers = dict.fromkeys(("s1", "s2"), ADDRESS)
    return SshLauncher(servers, login, around(**changes), plan="small", **more)


def folders(login: Login) -> set[str]:
    """The folders of programs that are on this machine now."""
    assert login.key is not None
    return {path.name for path in Keys(login.key.parent).temporary.glob("placewire-*")}


class Stage:
    """Runs stand-ins of this source over SSH and keeps what they said."""

    def __init__(self, login: Login, folder: Path, source: str) -> None:
        self.file, self.placement = folder / "stand_in.py", folder / "placement.json"
        self.file.write_text(PRELUDE + source)
        self.placement.write_text("{}")
        self.launcher = launcher_of(login, str(self.file))
        self.seen: list[RankEvent] = []

    async def run(self, count: int = 2, silence_seconds: float = 60) -> list[RankEvent]:
        await run_ranks(
            self.launcher, self.specs(count), self.seen.append, silence_seconds=silence_seconds
        )
        return self.seen

    def specs(self, count: int) -> list[RankSpec]:
        return [
            RankSpec(
                kind="placed", rank=rank, world_size=count, device=f"s{rank % 2 + 1}/0",
                master_address=ADDRESS, master_tcp_port=29400, rail_interfaces=(),
                placement_file=str(self.placement), steps=2**40,
                model="placewire.examples.models.mlp:training_step",
            )
            for rank in range(count)
        ]  # fmt: skip

    def left(self) -> list[str]:
        """Command lines of living processes that name this file."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if str(self.file) in line:
                    found.append(line.replace("\0", " "))
        return found
