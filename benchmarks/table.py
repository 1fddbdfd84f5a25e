"""A table of figures, printed as text or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """The first column is aligned left, the others right; the notes stand below."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[k]) for line in lines) for k in range(len(self.columns))]
        body = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, "", *body, "", *self.notes, ""])

    def markdown(self) -> str:
        def row(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        ruler = row(["---", *["---:"] * (len(self.columns) - 1)])
        body = [row(self.columns), ruler, *map(row, self.rows)]
        return "\n".join([f"## {self.title}", "", *body, "", *(f"{note}\n" for note in self.notes)])


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f}"
