"""A lab that is up: its names, its files, and how to run programs in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from placewire.controller.errors import PlacewireError, UsageError
from placewire.controller.lab import record as records
from placewire.controller.lab.record import LabRecord
from placewire.controller.lab.system import inside, marked_environment
from placewire.controller.own_lab import STATE_VARIABLE


@dataclass(frozen=True)
class Lab:
    record: LabRecord

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def directory(self) -> Path:
        return records.directory_of(self.name)

    @property
    def state_directory(self) -> Path:
        """The controller's folder: certificates, journal, cache."""
        return self.directory / "controller"

    def namespace(self, server: str) -> str:
        return next(s.namespace for s in self.record.servers if s.name == server)

    def inside_server(self, server: str, argv: Sequence[str]) -> list[str]:
        """Returns the command line that runs argv on that server's network."""
        return inside(self.namespace(server), argv)

    def inside_controller(self, argv: Sequence[str]) -> list[str]:
        return inside(self.record.controller_namespace, argv)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs in this lab; its mark makes them end with the lab."""
        return marked_environment(self.name, **{STATE_VARIABLE: str(self.state_directory)})

    def run_in_controller(self, argv: Sequence[str], more: Mapping[str, str] = {}) -> NoReturn:
        """Replaces this process by argv, on the controller's network. more: of its environment.
        Raises UsageError where this user cannot."""
        if os.geteuid() != 0:
            raise UsageError(
                f"the lab {self.name!r} runs in network namespaces, which root alone can enter",
                where="lab",
                remedy="run this as root",
            )
        command = self.inside_controller(argv)
        os.execvpe(command[0], command, {**self.environment, **more})


def find_lab(name: str) -> Lab | None:
    """Raises PlacewireError where the lab of this name is only half-made."""
    record = records.load(name)
    if record is None:
        return None
    if not record.complete:
        raise PlacewireError(
            f"the lab {name!r} is half-made: its `lab up` still runs, or ended early",
            where="lab",
            remedy=f"controller lab down {name}",
        )
    return Lab(record)
