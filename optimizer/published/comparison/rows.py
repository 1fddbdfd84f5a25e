"""The rows of a comparison, and the file that keeps them: JSON lines, appended durably.

A last line that a power failure cut off is dropped; any other line that is no row is refused, with
its line number.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Literal, Self

from pydantic import ValidationError

from placewire.frozen import Frozen
from placewire.optimizer.graph.validation_message import first_mistake
from placewire.optimizer.names import DEFAULT_SHARING, Model, SharingName
from placewire.optimizer.published.formulations.solver import SolverName
from placewire.optimizer.published.formulations.topological_sort import SortName
from placewire.optimizer.published.learned.settings import Feature

# placed: a placement within all memories, which was checked. infeasible: no placement within the
# memories was found. overran: the solve was ended, long after its limit. broken: a defect of ours.
Outcome = Literal["placed", "refused", "infeasible", "out of time", "overran", "broken"]


class RowsFileError(ValueError):
    """The file is no file of rows, or another comparison is writing it."""


class Row(Frozen):
    """step_seconds: under the method's own cost model. contended_seconds: the same placement under
    `contended` and `strict`, with rates allocated for these. bound_seconds: no step can be shorter
    under `contended`. fits: whether all memories hold the placement under `contended`; None without
    a placement. checked: whether its file, loaded again, passed `optimizer check`. search_seconds:
    from the problem to the checked placement; processor_seconds: of all its processes meanwhile.
    found: (seconds, step) of each better placement of the graph as given, when it was found.
    own_found: of a program, (seconds, step, bound) by its own model of the graph that it was given,
    each time its solver told a better one.
    limit_seconds: the time that the method was given."""

    key: str
    graph: str
    operators: int
    cluster: str
    engine: str
    reduction: str
    model: Model
    seed: int
    gap: float
    solver: SolverName
    sort: SortName = "auto"
    moves: int | None = None
    without: tuple[Feature, ...] = ()
    sharing: SharingName = DEFAULT_SHARING
    limit_seconds: float
    outcome: Outcome
    why: str = ""
    reduced: str = ""
    step_seconds: float | None = None
    contended_seconds: float | None = None
    bound_seconds: float | None = None
    single_device_seconds: float | None = None
    fits: bool | None = None
    checked: bool = False
    devices_used: int = 0
    search_seconds: float
    processor_seconds: float = 0.0
    peak_memory_bytes: int = 0
    found: tuple[tuple[float, float], ...] = ()
    own_found: tuple[tuple[float, float, float], ...] = ()

    @property
    def own_seconds(self) -> float | None:
        """A program's own objective: the step by its own model, of the graph that it was given."""
        return self.own_found[-1][1] if self.own_found else None

    @property
    def own_bound_seconds(self) -> float | None:
        return self.own_found[-1][2] if self.own_found else None

    @property
    def in_time(self) -> bool:
        """Whether it ended within its limit and a tenth more."""
        return self.outcome != "overran" and self.search_seconds <= 1.1 * self.limit_seconds


class RowsFile:
    """The file is open while a comparison runs; no other comparison can write it meanwhile."""

    _file: IO[bytes]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}

    def __enter__(self) -> Self:
        """Raises OSError, RowsFileError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.rows = self._read()
        except BaseException as error:
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise RowsFileError(
                    f"{self.path}: another comparison is writing it; wait until it ends, or "
                    "choose another folder"
                ) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        """The row is on the disk when this returns."""
        self._file.write(row.model_dump_json().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows[row.key] = row

    def _read(self) -> dict[str, Row]:
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._file.truncate(whole)
        lines = data[:whole].splitlines()
        return {row.key: row for row in (self._row(n, text) for n, text in enumerate(lines, 1))}

    def _row(self, number: int, text: bytes) -> Row:
        try:
            return Row.model_validate_json(text)
        except ValidationError as error:
            raise RowsFileError(
                f"{self.path}: line {number}: {first_mistake(error)}; it is no row of a "
                "comparison: move the file away to begin anew"
            ) from error
