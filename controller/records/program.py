"""Names the model, graph or script that the ranks of a run ran. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from placewire.controller.plan.job import Job
from placewire.frozen import Frozen

Kind = Literal["model", "graph", "script"]
_KINDS: Mapping[str, Kind] = {"placed": "model", "replay": "graph", "torchrun": "script"}


class ProgramRow(Frozen):
    """name: as the plan has it, of a model `package.module:function`."""

    kind: Kind
    name: str

    @property
    def short_name(self) -> str:
        """train.py, or mlp:training_step: without folders and packages, which would fill a line."""
        if self.kind != "model":
            return self.name.rpartition("/")[2]
        module, _, function = self.name.partition(":")
        return f"{module.rpartition('.')[2]}:{function}"


def program_of(job: Job) -> ProgramRow:
    return ProgramRow(kind=_KINDS[job.kind], name=job.program)
