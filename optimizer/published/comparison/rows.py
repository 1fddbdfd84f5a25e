"""One line of a comparison, and the file that keeps them: JSON lines, appended durably.

A line that was cut off at the end of the file, as a power failure leaves it, is dropped; anything
else that is no row is refused with its place.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from pydantic import ValidationError

from placewire.frozen import Frozen
from placewire.optimizer.graph.validation_message import first_mistake
from placewire.optimizer.names import Model
from placewire.optimizer.published.formulations.solver import SolverName
from placewire.optimizer.published.learned.settings import Feature

# placed: within all memories, and checked. infeasible: none within the memories was found. overran:
# it was ended, long after its limit. broken: a mistake of ours.
Outcome = Literal["placed", "refused", "infeasible", "out of time", "overran", "broken"]


class RowsFileError(ValueError):
    """A file of rows that is none, or that another comparison writes."""


class Row(Frozen):
    """step_seconds: under the method's own cost model. contended_seconds: the same placement under
    `contended` and `strict`, its rates allocated for that. bound_seconds: no placement can be
    shorter under `contended`. fits: whether all memories hold it under `contended`; None without a
    placement. checked: its file was read back and passed `optimizer check`.
    search_seconds: from the problem to the checked placement; processor_seconds: of all its
    processes meanwhile. found: (seconds, step) as a better placement of the graph as given was
    known. limit_seconds: what it was given."""

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
    moves: int | None = None
    without: tuple[Feature, ...] = ()
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

    @property
    def in_time(self) -> bool:
        """Within its limit and a tenth of it."""
        return self.outcome != "overran" and self.search_seconds <= 1.1 * self.limit_seconds


class RowsFile:
    """Open while a comparison runs; no other may write meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Raises OSError, RowsFileError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self._file = self.path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.rows = self._read(file)
        except BlockingIOError as error:
            file.close()
            raise RowsFileError(f"{self.path}: another comparison is writing it") from error
        except BaseException:
            file.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, row: Row) -> None:
        """On the disk when this returns."""
        assert self._file is not None
        self._file.write(row.model_dump_json().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows[row.key] = row

    def _read(self, file: IO[bytes]) -> dict[str, Row]:
        file.seek(0)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)
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
